#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "driver/sizes.h"
#include "onnx/reader.h"
#include "prim/sizes.h"
#include "support/hash.h"

namespace heddle::driver {

/// By the names of dimensions.
using Sizes = std::map<std::string, std::int64_t>;
/// "H=64, W=32".
std::string text_of(const Sizes& sizes);
/// What sizes may combine to, at most.
constexpr std::size_t kMaxCases = 1 << 14;

/// Sizes, and those of the program that they run in, by range.
struct SizeCombination {
  Sizes sizes;
  std::vector<std::int64_t> program;
};
/// All combinations of sizes of inputs, in ascending order; what follows from them is among them,
/// where it has a name of its own.
Result<std::vector<SizeCombination>> combinations(const std::vector<SizeRange>& ranges,
                                                  const onnx::Dimensions& known);
/// The model's dimensions where `ranges` tell sizes.
Result<onnx::Dimensions> dimensions_at(const std::string& path,
                                       const std::vector<SizeRange>& ranges,
                                       const CompileOptions& options);
/// What they are called, by input and axis (runtime::SizedProgram::dimensions).
std::vector<std::vector<std::string>> dimensions_of_inputs(const runtime::SizedProgram& sized,
                                                           const onnx::Dimensions& known);

/// Makes the programs of a dispatch table, bucket by bucket.
class SizeCompiler {
 public:
  explicit SizeCompiler(const CompileOptions& options) : options_(options) {}
  /// A bucket: sizes, of which the last are the largest, and the model at each of them. Those that
  /// do not fit the others get programs of their own, if they are few.
  Status add(const std::vector<Sizes>& sizes, const std::vector<prim::Graph>& graphs);

  struct Made {
    runtime::SizedProgram program;
    std::vector<SizeBucket> buckets;
    std::vector<PhaseTime> times;  ///< since the compiler was made
  };
  Made take();

 private:
  struct Bucket {
    std::vector<Sizes> sizes;
    std::vector<const prim::Graph*> graphs;
    int families = 0;              ///< parted before it
    std::set<std::string> varied;  ///< names, in what it was parted from
    std::string reason;            ///< why it was parted
  };
  /// Where a size of one dimension makes the model another one (0 rows are folded away, odd extents
  /// are rounded), all cases of that size are a family of their own, else the case that does not
  /// fit; a family is a bucket again.
  Status add_bucket(Bucket bucket);
  Result<prim::Sizes> merge(const Bucket& bucket, prim::Misfit* misfit);
  static void sort(Bucket& bucket);
  static void part(Bucket& bucket, Bucket& family, const std::function<bool(const Sizes&)>& unlike);
  static std::string blamed(const Bucket& bucket, std::size_t misfit);
  /// One program for these sizes, the last of which is the largest.
  Status add_program(prim::Sizes merged, const std::vector<Sizes>& sizes,
                     const std::vector<const prim::Graph*>& graphs, std::string note);
  /// The last case of the last program is as large as that: without padding, where that is faster.
  Status own_program(const Sizes& sizes, const prim::Graph& graph);
  std::size_t value(const Tensor& tensor);
  double lap();

  const CompileOptions& options_;
  Made out_;
  std::map<std::string, double> seconds_;
  std::map<Hash, std::size_t> values_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace heddle::driver
