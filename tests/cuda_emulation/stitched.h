#pragma once
// Every stitched kernel of the cases as CUDA text, with data.
#include "cuda_emulation/run.h"
#include "lower/stitch/test_cases.h"

namespace heddle {

using lower::cases::in;
using lower::cases::out;
using lower::cases::StitchCase;

/// The cases of driver/cuda_kernels_test.cpp that the stitch cases lack, on smaller, odd shapes.
inline const StitchCase kMore[] = {
    {"wide softmax",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {7, 1023}), {1}));
     }},
    {"middle softmax",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {2, 130, 3, 5}), {1}));
     }},
    {"wide bf16 norm",
     [](auto& g, auto& b) {
       const auto n = b.normalize(in(g, {5, 771}, DType::bf16), {1}, 1e-5);
       out(g, b.add(b.mul(n, in(g, {771}, DType::bf16)), in(g, {771}, DType::bf16)));
     }},
    {"wide batch norm",
     [](auto& g, auto& b) {
       out(g, b.normalize(in(g, {3, 5, 13, 7}), {0, 2, 3}, 1e-5));
     }},
    {"wide argmax",
     [](auto& g, auto& b) {
       out(g, b.reduce(ir::Monoid::argmax, in(g, {5, 1000}), {1}, false));
     }},
    {"sort",
     [](auto& g, auto& b) {
       out(g, b.sort_indices(in(g, {5, 37}), 1, false, 37));
     }},
    {"first of many equal",
     [](auto& g, auto& b) {
       out(g, b.sort_indices(in(g, {4, 45}, DType::i32), 1, true, 10));
     }},
    {"cluster softmax",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {2, 20003}), {1}));
     }},
    {"cluster bf16 norm",
     [](auto& g, auto& b) {
       const auto n = b.normalize(in(g, {1, 40000}, DType::bf16), {1}, 1e-5);
       out(g, b.add(b.mul(n, in(g, {40000}, DType::bf16)), 1));
     }},
    {"wide half",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {9, 515}, DType::f16), {1}));
     }},
};

struct StitchedKernel {
  std::string name;
  prim::Graph graph;
  lower::Prepared prepared;
  codegen::cuda::KernelText text;
};

/// All cases with several layouts, in units that are compiled at the same time.
class Stitched {
 public:
  static constexpr int kUnits = 2, kRounds = 3;

  Stitched() {
    std::mt19937 rng(11);
    for (const StitchCase& c : lower::cases::kCases) add(c, rng);
    for (const StitchCase& c : kMore) add(c, rng);
  }
  /// Unit u holds kernels u, u + kUnits, …
  std::string unit(int u) const {
    std::string text = codegen::cuda::unit_header();
    for (std::size_t i = static_cast<std::size_t>(u); i < all.size(); i += kUnits)
      text += all[i]->text.text;
    return text;
  }
  std::vector<std::unique_ptr<StitchedKernel>> all;
  std::string problems;

 private:
  void add(const StitchCase& c, std::mt19937& rng) {
    for (int round = 0; round < kRounds; ++round) {
      auto one = std::make_unique<StitchedKernel>();
      one->name = fmt::format("{} round {}", c.name, round);
      prim::Builder builder(one->graph);
      c.build(one->graph, builder);
      lower::CheckOptions options;
      options.random_layouts = round > 0;
      options.free_outputs = round == 2;
      options.target = lower::gpu_target(round < 2 ? 4 : 132);
      auto prepared = lower::prepare(one->graph, rng, options);
      if (!prepared) {
        problems += fmt::format("{}: {}\n", one->name, prepared.error().message);
        continue;
      }
      one->prepared = *std::move(prepared);
      auto text =
          codegen::cuda::to_text(one->prepared.lowered.kernel, fmt::format("k{}", all.size()));
      if (!text) {
        problems += fmt::format("{}: {}\n", one->name, text.error().message);
        continue;
      }
      one->text = *std::move(text);
      all.push_back(std::move(one));
    }
  }
};

}  // namespace heddle
