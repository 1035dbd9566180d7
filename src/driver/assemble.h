#pragma once
#include <map>
#include <vector>

#include "driver/driver.h"

namespace heddle::driver {

/// Which object a kernel's code is in and where its constants went are settled here: kernels in
/// execution order become flat launches over one arena planned by liveness. `monolith`: phases say
/// what they touch, and small values do not share memory, which would order what is independent.
runtime::Program assemble(const prim::Graph& graph, const std::vector<CompiledKernel>& kernels,
                          std::vector<std::string> objects, int threads, const std::string& device,
                          bool monolith = false);

}  // namespace heddle::driver
