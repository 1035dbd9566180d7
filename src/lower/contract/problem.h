#pragma once
#include <optional>
#include <vector>

#include "lower/lower.h"

namespace heddle::lower::contract {

enum class Role : std::uint8_t { batch, m, n, k };

/// One loop of a contraction.
struct Axis {
  ir::Var var;
  std::int64_t extent = 1;
  Role role = Role::m;
};

/// A dimension of an operand whose coordinate counts so many elements, which are one word; zero
/// where the element's own coordinate is not inside.
struct PartsOf {
  int dim, count;
  std::optional<ir::Interval> inside;
};

struct EpilogueSum;

/// A contraction in normal form: out[o(axes)] = Σ_k a[…]·b[…], where b alone depends on the n axes,
/// a alone on the m axes, both may depend on batch axes. Axes of extent 1 are gone; a dimension
/// that both operands read through a quotient (grouped convolution) is split. Operands are swapped
/// so that the one better read along vectors is `b`.
struct Problem {
  NodeId contract, a, b;
  std::vector<Axis> axes;     ///< in the order of output dimensions, then reductions
  std::vector<ir::Expr> out;  ///< coordinates of the contraction's result
  prim::Access a_access, b_access;
  DType type = DType::f32;  ///< of products and sums
  /// Integers of at most 16 bits go two reductions at a time (ScalarFn::dot2), so does bf16
  /// (kernel::product_of_halves), bytes go four (dot4): along these dimensions of the operands,
  /// coordinates and one reduction axis count such parts.
  struct Parts {
    PartsOf a, b;
    int count = 2;
    bool a_signed = true;  ///< of bytes, one operand's are
  };
  std::optional<Parts> parts;
  std::optional<PartsOf> a_parts() const { return parts ? std::optional(parts->a) : std::nullopt; }
  std::optional<PartsOf> b_parts() const { return parts ? std::optional(parts->b) : std::nullopt; }
  /// Of the elements of operands: words of parts.
  DType element() const { return parts ? DType::i32 : type; }
  /// Of an element of each operand.
  kernel::Value product(kernel::Value x, kernel::Value y) const;

  std::vector<Axis> of(Role role) const;
  std::int64_t count(Role role) const;
  ir::Ranges ranges() const;
  /// A sum of the elements of each row; else of each column, or of all.
  bool along_rows(const EpilogueSum& sum) const;
};

/// A single column of a constant is `a`, and the positions are the vectors, unless it shall be `b`.
Problem analyse(const prim::Graph& g, NodeId contract, bool constant_columns = false);
/// The same with groups and what each makes as one axis: each channel of a grouped convolution is
/// one of a batch, whose reduction is over the channels of its group.
Problem analyse_channels(const prim::Graph& g, NodeId contract);
/// Whether one filter's vectors would be the windows of a padded image: no columns to be packed.
bool has_padded_columns(const prim::Graph& g, const Problem& p);
/// Of two operands that are computed, the image is `a` and the filter's channels are the vectors,
/// as with constant filters; of the gradient of a filter over many positions, the operand under the
/// filter is `a`: a row for each tap of a box that is copied once.
void choose_sides(const prim::Graph& g, Problem& p);
/// Sets Problem::parts where operands, accesses and the machine's instructions allow it, and
/// divides that reduction.
void join_reductions(const prim::Graph& g, const Target& target, Problem& p);
/// Sets Problem::parts of two operands of bytes, of either sign, where accesses allow it.
void join_bytes(const prim::Graph& g, Problem& p);

/// Where each value of the cluster that depends on the contraction has the element that belongs to
/// position `problem.out`; nullopt if some such value is no bijective image of the result.
struct Image {
  NodeId node;
  std::vector<ir::Expr> index;
};
std::optional<std::vector<Image>> images(const prim::Graph& g, const Cluster& c,
                                         const Problem& problem);

/// A reduction of an image over all rows, over all columns or over both, and perhaps over batches,
/// which rides in the epilogue (gradients of biases and norms): what is reduced, at a position of
/// the result, and where the outcome has its element.
struct EpilogueSum {
  NodeId node, arg;
  ir::Monoid fn;
  std::vector<ir::Expr> arg_index, index;
  bool over_m, over_n;
  std::vector<ir::Var> over_batch;
};
std::optional<EpilogueSum> epilogue_sum(const prim::Graph& g, const std::vector<Image>& images,
                                        const Problem& problem, NodeId node);
/// True if kernels for the target have such sums: a CPU's those of f32 and f64, of one batch, over
/// the rows or, of products with one reduction axis, along them.
bool has_sum(const prim::Graph& g, const Problem& problem, const EpilogueSum& sum,
             const Target& target);

}  // namespace heddle::lower::contract
