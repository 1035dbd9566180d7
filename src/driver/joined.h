#pragma once
#include <unordered_map>

#include "driver/driver.h"

namespace heddle::driver {

/// The kernels of a plan, those of concatenations replaced by what makes the parts that nothing
/// else makes: they are stored where the whole has them, as are those that other kernels make.
struct JoinedPlan {
  std::vector<plan::Kernel> kernels;
  std::vector<std::size_t> planned;  ///< by kernel: the plan's that it is
  /// Wholes and parts, by what is computed.
  std::unordered_map<prim::NodeId, lower::Member> members;
  std::vector<lower::Join> joins;  ///< with parts by what is computed
};
/// `actual`: what is computed where a value is wanted. Concatenations whose root is in `refused`
/// are copied together, as are those some part of which is not computed once.
JoinedPlan join_in_place(const prim::Graph& graph, const plan::Plan& plan,
                         const lower::Target& target,
                         const std::function<prim::NodeId(prim::NodeId)>& actual,
                         const std::vector<prim::NodeId>& refused);

}  // namespace heddle::driver
