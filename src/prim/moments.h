#pragma once
#include <functional>
#include <string_view>

#include "prim/graph.h"

namespace heddle::prim {

/// The pass that applies moments_in_one_pass() to all; the driver chooses by cost.
inline constexpr std::string_view kMomentsInOnePass = "moments-in-one-pass";

/// A sum of squares about a mean, Σ (x - Σx / n)², as normalisations have it for their variance.
struct Deviation {
  NodeId squares;  ///< the sum of squares
  NodeId x, sum;   ///< what is summed, and its sum
};
std::vector<Deviation> deviations(const Graph& g);

/// The graph with Σx² - (Σx)² / n in place of those that are `wanted`, and of Σx: neither sum then
/// waits for the other, so both can be made where x is (EVT, section 4). In f64, where x is f32: in
/// f32 the difference would lose what (mean / deviation)² takes of 24 bits; in f64 it errs by less
/// than x itself does by having been rounded. What is stored in 16 bits on the way is left: there x
/// is not what is centred.
Graph moments_in_one_pass(const Graph& g, const std::function<bool(const Deviation&)>& wanted);

}  // namespace heddle::prim
