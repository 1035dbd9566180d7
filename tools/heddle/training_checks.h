#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "prim/graph.h"
#include "training_data.h"

namespace heddle::tool {

/// The loss of a class that there is not would be that of none, a wrong number without a word.
Status want_classes(const Data& data, const std::vector<runtime::Port>& ports, std::int64_t classes,
                    std::optional<std::int64_t> ignored, const std::string& path);

/// Probabilities beyond 0 and 1 have no cross entropy, but it gives a number.
Status want_probabilities(const Data& data, const std::vector<runtime::Port>& ports,
                          const std::string& path);

/// Inputs that say which rows of a tensor to read (the tokens of an embedding), and of how many.
std::map<std::string, std::int64_t> positions_of(const prim::Graph& graph);
/// Kernels take the nearest row there is, which would train that one.
Status want_positions(const Data& data, const std::vector<runtime::Port>& ports,
                      const std::map<std::string, std::int64_t>& rows);

/// Hours of training should not end in a file that cannot be written, nor take the place of a
/// device or of one of the files that are read. A symbolic link becomes what it leads to.
Status want_writable(const char* flag, std::string& path, const std::vector<std::string>& others);

/// Name of a tensor of the batch that holds something not finite, or "".
std::string name_of_not_finite(const std::vector<Tensor>& batch,
                               const std::vector<runtime::Port>& ports);

}  // namespace heddle::tool
