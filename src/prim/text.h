#pragma once
#include <string>
#include <unordered_map>

#include "prim/graph.h"
#include "support/result.h"

namespace heddle::prim {

/// Constants by content hash: what a text refers to as @<32 hexadecimal digits>.
using ConstantTable = std::unordered_map<Hash, Tensor>;

struct PrintOptions {
  std::int64_t max_inline = 32;  ///< elements; larger constants print as their hash
  bool embed = false;            ///< write the bytes of those in hexadecimal instead
};

/// One line per live node, arguments first:
///   input "x" : f32[1,3,8,8]
///   origin "Conv" "stem/conv", "Relu" "stem/relu"
///   %3 = contract %0, %1 reduce [3,3] lhs (d0, d4, …) where 0 <= … < 8 rhs (…) : f32[1,4,8,8]
///   output "y" = %3
/// A constant is `{1, 2.5}`, `bytes "0000803f"`, `@<hash>`, or `random <seed>` (read only).
std::string print(const Graph& g, const PrintOptions& options = {});
/// The line of one node: "%12 = map add %3, %7 : f32[1,64]".
std::string print_node(const Graph& g, NodeId id, const PrintOptions& options = {});

/// One node in a few words, for reports: "contract f32[1,64,56,56]", "map add f32[4]".
std::string describe(const Graph& g, NodeId id);

/// The inverse of print, verified; a constant that is not inline must be in `constants`. Sizes are
/// checked before anything is allocated, so hostile text is an error and nothing worse.
Result<Graph> parse_graph(std::string_view text, const ConstantTable& constants = {});

/// The constants of live nodes that print() does not write inline.
ConstantTable large_constants(const Graph& g, const PrintOptions& options = {});
/// A file of constants: "hedc1\n", then for each its hash, type text, a newline and its bytes.
Status save_constants(const ConstantTable& constants, const std::string& path);
/// Where the constants of a text in the file `path` are: "path.hedc".
std::string constants_beside(const std::string& path);
Result<ConstantTable> load_constants(const std::string& path);

}  // namespace heddle::prim
