#pragma once
#include <memory>
#include <string>
#include <vector>

#include "driver/sizes.h"
#include "runtime/chain.h"

namespace heddle::driver {

struct CompiledChain {
  std::shared_ptr<const runtime::Chain> chain;
  std::vector<std::string> notes;
  std::vector<PhaseTime> times;
};
/// One artefact of an ONNX model in which values decide shapes (onnx/stages.h): its stages, each
/// compiled for every extent, or number, that the ones before it may find. `ranges` bound these, by
/// the name of the value or of the node that makes it, or are sizes of the model's own dimensions;
/// extents that are not named go from 0 to the
/// most there can be, conditions are false or true. Errors name the node, and what would help: host
/// operators, numbers that nothing bounds, more sizes than can be compiled, and models that go on
/// in another way for some of them.
Result<CompiledChain> compile_chain(const std::string& path, const std::vector<SizeRange>& ranges,
                                    const CompileOptions& options);

/// Ready to run: the ports are the model's, see runtime::Chain.
Result<std::shared_ptr<runtime::Session>> load_chain(std::shared_ptr<const runtime::Chain> chain,
                                                     const CompileOptions& options);

}  // namespace heddle::driver
