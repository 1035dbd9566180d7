#pragma once
#include <array>

#include "lower/contract/product.h"

namespace heddle::lower::contract {

/// A convolution by 3×3 of stride 1 as minimal filtering (Lavin and Gray, CVPR 2016; Winograd
/// 1980): tiles of m×m results from (m+2)×(m+2) elements, A²=(m+2)² products of
/// tiles × channels × filters instead of 9·m² multiplications a result tile and channel pair. Of
/// volumes and videos, the planes that a result is of are as many more channels.
struct Winograd {
  Axis kh, kw, channel;
  std::optional<Axis> depth;  ///< the planes
  std::size_t channel_dim;    ///< of the box
  std::vector<int> order;     ///< of the box's dimensions as it is stored: channels innermost
  bool turned = false;        ///< memory has them in another one

  /// Channels of all planes, one plane's behind another's.
  std::int64_t terms() const { return (depth ? depth->extent : 1) * channel.extent; }
};

/// nullopt unless the product is such a convolution with a filter in memory, its operand read
/// through a box, channels and filters whole vectors.
std::optional<Winograd> winograd_of(const Product& p, int lanes);

/// What transformed elements and filters are multiplied as.
enum class WinogradTerms : std::uint8_t {
  single,  ///< f32
  /// Pairs of bf16, where operands are: what is transformed for 2×2 results loses little more than
  /// storing it does, for 4×4 it would lose much more.
  halves,
  /// Pairs of 16-bit integers, for machines without products of four bytes: what is transformed for
  /// 2×2 results fits, filters kWinogradScale times as large, and so do their sums in i32, so that
  /// results are exact.
  integers
};
/// nullopt if there are no tiles of m×m of such operands.
std::optional<WinogradTerms> winograd_terms(const prim::Graph& g, const Problem& p,
                                            const Target& target, std::int64_t m);
/// Filters of integers are transformed, and results are, times this.
constexpr int kWinogradScale = 4, kWinogradShift = 2;

/// One line of m+2 elements of the operand's transform, BᵀD.
std::vector<kernel::Value> input_line(std::int64_t m, const std::vector<kernel::Value>& d);
/// One line of m results from m+2 products, AᵀM.
std::vector<kernel::Value> output_line(std::int64_t m, const std::vector<kernel::Value>& d);
/// G, (m+2)×3: the filter's transform is G g Gᵀ.
std::vector<std::array<double, 3>> filter_transform(std::int64_t m);

/// Tiles of 2×2 and 4×4, as far as the target allows them; none if `p` is no such convolution.
std::vector<Algorithm> winograd_algorithms(const prim::Graph& g, const Problem& p,
                                           const Target& target);

/// Schedules with tiles of m×m, the best by the model first; empty if `p` is no such convolution.
std::vector<Schedule> winograd_schedules(const Product& p, const Target& target, int lanes,
                                         std::int64_t m, const Tuning& fixed, std::size_t count);

}  // namespace heddle::lower::contract
