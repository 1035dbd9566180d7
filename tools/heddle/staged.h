#pragma once
#include <set>
#include <string>

#include "common.h"
#include "driver/verify.h"
#include "onnx/stages.h"

/// Models that are no single program (onnx/stages.h): they run in stages, compiled here and now.
namespace heddle::tool {

/// Whether the model has operators that the host does.
Result<bool> is_staged(const std::string& model);
/// The same; error: a training step of such a model is wanted.
Result<bool> is_staged(const ModelFlags& flags);
/// Whether a model that cannot be one program, for this reason, runs in stages, of the shapes of
/// --input.
bool works_in_stages(const ModelFlags& flags, const Error& why);
/// The program, or the reason why there is none, and what to do.
template <class T>
Result<T> or_stages(const ModelFlags& flags, Result<T> program) {
  if (program || !works_in_stages(flags, program.error())) return program;
  return unsupported("{}; as one program: run, verify and explain take it in stages",
                     program.error().message);
}
/// Inputs as make_inputs takes them; strings, and inputs of symbolic shapes, need files. An error
/// if outputs differ from the folder's test data.
Status run_staged(const ModelFlags& flags, const std::string& save, double relative,
                  double absolute);
/// Which operators run on the host, and what waits for them; or what `node` becomes.
Status explain_staged(const ModelFlags& flags, const std::string& node);

/// All stages on the model's inputs, as run_staged takes them. Host operators are plain code, with
/// nothing to be compared with.
struct StagedVerification {
  driver::Verification all;  ///< kernels and outputs of every stage
  std::size_t stages = 0;
  std::set<std::string> host;      ///< operators that ran on the host, "Op 'name'"
  std::string from;                ///< the inputs, in words
  std::optional<double> expected;  ///< largest error against test data, as a share of the scale
};
Result<StagedVerification> verify_staged(const ModelFlags& flags, const Tolerance& tolerance);

}  // namespace heddle::tool
