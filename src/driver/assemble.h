#pragma once
#include <map>
#include <vector>

#include "driver/driver.h"

namespace heddle::driver {

enum class Layout {
  kernels,
  monolith,  ///< phases say what they touch; memory that would order what is independent is not
             ///< shared
  tight,     ///< a monolith's, in as little memory as that of kernels
};

/// Which object a kernel's code is in and where its constants went are settled here: kernels in
/// execution order become flat launches over one arena planned by liveness.
runtime::Program assemble(const prim::Graph& graph, const std::vector<CompiledKernel>& kernels,
                          std::vector<std::string> objects, int threads, const std::string& device,
                          Layout layout = Layout::kernels);

}  // namespace heddle::driver
