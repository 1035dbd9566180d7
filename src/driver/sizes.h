#pragma once
#include <string>
#include <vector>

#include "driver/driver.h"
#include "runtime/sized.h"

namespace heddle::driver {

/// Sizes of one symbolic dimension, and those that programs are made for: each size runs in the
/// program of the next one.
struct SizeRange {
  std::string name;  ///< onnx::ImportOptions::dimensions
  std::vector<std::int64_t> sizes, programs;
};
/// Sizes of dimensions, and those that follow from others.
struct SizeWishes {
  std::vector<SizeRange> ranges;
  DimensionFacts facts;
};
/// Each as "S=1..512" (programs for 512, 256, 128 and 64), "S=32..640:32" (multiples),
/// "S=1..512@128,512" (programs for these), "S=8,16" (a program for each, nothing padded),
/// "total=past+seq" (a fact).
Result<SizeWishes> parse_sizes(const std::vector<std::string>& texts);
/// "S=16".
Result<std::pair<std::string, std::int64_t>> parse_size(const std::string& text);

/// What became of the sizes that one program was meant for.
struct SizeBucket {
  Compiled compiled;
  std::string note;  ///< why some have a program of their own; empty: none has
};
struct CompiledSizes {
  std::shared_ptr<const runtime::SizedProgram> program;
  std::vector<SizeBucket> buckets;  ///< by program
  std::vector<PhaseTime> times;
};
/// One artefact for all sizes in `ranges` of an ONNX model, whose other dimensions follow from
/// these (CompileOptions::facts and onnx::Dimensions): its graph is imported at every size and
/// those of a bucket are merged into one (prim/sizes.h). A few sizes that do not fit the others of
/// their bucket get programs of their own; more are an error that says why.
Result<CompiledSizes> compile_sizes(const std::string& path, const std::vector<SizeRange>& ranges,
                                    const CompileOptions& options);

/// Sessions of a program for several sizes, made when a size is first met; code is loaded once for
/// each program.
class SizedModel {
 public:
  static Result<std::shared_ptr<SizedModel>> load(
      std::shared_ptr<const runtime::SizedProgram> program, const CompileOptions& options);
  const runtime::SizedProgram& program() const { return *program_; }
  Result<std::shared_ptr<runtime::Session>> session(std::size_t number);

 private:
  std::shared_ptr<const runtime::SizedProgram> program_;
  std::vector<std::shared_ptr<runtime::Session>> programs_;  ///< of each program
};

}  // namespace heddle::driver
