// Generated GPU contractions, as CUDA text, agree with the primitives' reference under the
// emulation; every synchronisation in them is needed, and its absence is found.
#include "cuda_emulation/device.h"
#include "cuda_emulation/mutants.h"
#include "cuda_emulation/run.h"
#include "lower/contract/test_util.h"

namespace heddle {
namespace {

using emulation::Order;
using lower::Case;
using lower::NodeId;

struct Contraction {
  std::unique_ptr<Case> graph = std::make_unique<Case>();
  std::string name;
  lower::Lowered lowered;
  codegen::cuda::KernelText text;
};

class Contractions {
 public:
  Contractions() {
    for (DType type : {DType::f32, DType::bf16, DType::f16}) {
      for (const auto& [m, n, k] :
           {std::array{5, 16, 7}, std::array{33, 24, 100}, std::array{40, 72, 48}})
        add(fmt::format("{} {}x{}x{}", name_of(type), m, n, k), [&](Case& c) {
          c.output(c.b.matmul(c.input({m, k}, type), c.input({k, n}, type)));
        });
      for (int which = 1; which < 4; ++which)
        add(fmt::format("{} transposed {}", name_of(type), which), [&](Case& c) {
          NodeId x = c.input(which & 1 ? Shape{41, 30} : Shape{30, 41}, type);
          NodeId w = c.input(which & 2 ? Shape{24, 41} : Shape{41, 24}, type);
          if (which & 1) x = c.b.transpose(x, {1, 0});
          if (which & 2) w = c.b.transpose(w, {1, 0});
          c.output(c.b.matmul(x, w));
        });
      add(fmt::format("{} epilogue", name_of(type)), [&](Case& c) {
        NodeId y = c.b.matmul(c.input({14, 10}, type), c.constant({10, 24}, type));
        y = c.b.add(y, c.b.broadcast(c.constant({24}, type), {14, 24}));
        c.output(y);
        c.output(c.b.mul(c.b.relu(y), c.input({14, 1}, type)));
      });
      add(fmt::format("{} prologue", name_of(type)), [&](Case& c) {
        if (type == DType::f16)
          c.tolerance = 1e-2;  // operands are rounded, the reference's are not
        c.output(c.b.matmul(c.b.exp(c.input({9, 16}, type)), c.b.tanh(c.input({16, 24}, type))));
      });
      add(fmt::format("{} convolution", name_of(type)), [&](Case& c) {
        c.output(c.b.relu(c.b.conv(c.input({2, 4, 9, 7}, type), c.constant({8, 4, 3, 3}, type),
                                   lower::conv(2, 1, 1))));
      });
    }
    for (DType type : {DType::f32, DType::bf16})
      for (int resident : {1, 0})
        add(fmt::format("{} splits {}", name_of(type), resident), [&](Case& c) {
          c.tuning = {{"splits", 2}, {"bm", 32}, {"bn", 32}, {"resident", resident}};
          c.output(c.b.relu(c.b.matmul(c.input({70, 520}, type), c.input({520, 72}, type))));
        });
    add("tf32", [](Case& c) {
      c.tuning = {{"tf32", 1}};
      c.tolerance = 2e-3;
      c.output(c.b.matmul(c.input({33, 50}), c.b.transpose(c.input({41, 50}), {1, 0})));
    });
    add("f64", [](Case& c) {
      c.output(c.b.matmul(c.input({9, 11}, DType::f64), c.input({11, 19}, DType::f64)));
    });
    for (int unit : {2, 3}) add_warpgroups(unit);
    add_sums();
    for (DType type : {DType::f32, DType::bf16})
      add(fmt::format("{} long", name_of(type)), [&](Case& c) {
        c.tuning = {{"bm", 32}, {"bn", 32}};
        c.output(c.b.matmul(c.input({40, 200}, type), c.input({200, 40}, type)));
      });
  }
  std::vector<Contraction> all;
  std::string problems;

 private:
  /// Several outputs, reductions over rows, over columns and over both, of every unit; parts are
  /// added in the same launch or in one of their own.
  void add_sums() {
    struct Row {
      const char* name;
      DType type;
      std::array<int, 3> mnk;
      lower::Tuning tuning;
    };
    const Row rows[] = {
        {"scalar", DType::f32, {70, 75, 21}, {{"bm", 32}, {"bn", 32}}},
        {"apart", DType::f32, {70, 21, 40}, {{"bm", 16}, {"bn", 64}, {"resident", 0}}},
        {"shared", DType::f32, {37, 50, 530}, {{"splits", 4}, {"bm", 32}, {"bn", 32}}},
        {"mma", DType::bf16, {41, 150, 33}, {{"unit", 1}, {"bm", 16}, {"bn", 128}}},
        {"wide", DType::bf16, {40, 264, 33}, {{"unit", 1}, {"bm", 128}, {"bn", 256}}},
        {"f16 shared",
         DType::f16,
         {41, 66, 530},
         {{"unit", 1}, {"splits", 2}, {"bm", 32}, {"bn", 32}}},
        {"wgmma", DType::bf16, {150, 72, 72}, {{"unit", 2}}},
        {"tma", DType::bf16, {201, 264, 72}, {{"unit", 3}, {"bm", 128}, {"bn", 256}}},
        {"tma shared", DType::bf16, {130, 72, 520}, {{"unit", 3}, {"splits", 2}}},
        {"stream", DType::f32, {300, 5, 80}, {}},
    };
    for (const Row& row : rows)
      add(fmt::format("sums {}", row.name), [&](Case& c) {
        const auto [m, n, k] = row.mnk;
        c.target.warpgroups = true;
        c.target.multiprocessors = 2;
        c.tolerance = row.type == DType::f32 ? 2e-4 : 4e-2;
        c.tuning = row.tuning;
        const NodeId w = c.b.transpose(c.input({n, k}, row.type), {1, 0});
        const NodeId y = c.b.cast(c.b.matmul(c.input({m, k}, row.type), w), DType::f32);
        const NodeId z = c.b.mul(y, c.input({m, n}));
        c.output(y);
        c.output(c.b.reduce_sum(y, {0}, false));
        c.output(c.b.reduce_sum(z, {1}, false));
        c.output(c.b.reduce(ir::Monoid::max, z, {0}, false));
        c.output(c.b.reduce_sum(c.b.mul(z, z), {0, 1}, false));
      });
    add("sums of batches", [](Case& c) {
      c.tuning = {{"bm", 32}, {"bn", 32}};
      c.tolerance = 1e-4;
      const NodeId y = c.b.matmul(c.input({2, 40, 30}), c.input({2, 30, 40}));
      c.output(y);
      c.output(c.b.reduce_sum(y, {0, 1}, false));
      c.output(c.b.reduce_sum(y, {2}, false));
    });
  }
  /// Products by warpgroups of what threads (2) or the copy engine (3) bring.
  void add_warpgroups(int unit) {
    const std::string name = unit == 2 ? "wgmma" : "tma";
    const auto prepare = [&](Case& c, std::initializer_list<std::pair<const char*, int>> tuning) {
      c.target.warpgroups = true;
      c.target.multiprocessors = 2;
      c.tolerance = 2e-2;
      c.tuning = {{"unit", unit}};
      for (const auto& [key, value] : tuning) c.tuning.emplace_back(key, value);
    };
    for (DType type : {DType::f16, DType::bf16})
      for (const auto& [m, n, k] : {std::array{128, 64, 72}, {150, 72, 200}, {130, 136, 264}})
        add(fmt::format("{} {} {}x{}x{}", name, name_of(type), m, n, k), [&](Case& c) {
          prepare(c, {});
          if (k == 264) prepare(c, {{"bm", 128}, {"bn", 256}});
          const NodeId w =
              k == 200 ? c.constant({k, n}, type) : c.b.transpose(c.input({n, k}, type), {1, 0});
          const NodeId y = c.b.matmul(c.input({m, k}, type), w);
          c.output(c.b.relu(c.b.add(y, c.b.broadcast(c.input({n}, type), {m, n}))));
        });
    add(name + " batches", [&](Case& c) {
      prepare(c, {});
      const NodeId x = c.input({2, 130, 3, 64}, DType::bf16);
      const NodeId w = c.input({2, 3, 72, 64}, DType::bf16);
      c.output(c.b.matmul(c.b.transpose(x, {0, 2, 1, 3}), c.b.transpose(w, {0, 1, 3, 2})));
    });
    add(name + " splits", [&](Case& c) {
      prepare(c, {{"splits", 2}});
      const NodeId w = c.b.transpose(c.input({72, 520}, DType::bf16), {1, 0});
      c.output(c.b.exp(c.b.matmul(c.input({130, 520}, DType::bf16), w)));
    });
    add(name + " long", [&](Case& c) {
      // Two warpgroups: one does not need the barrier before its results.
      prepare(c, {{"bm", 128}, {"bn", 64}});
      c.target.multiprocessors = 1;
      const NodeId w = c.b.transpose(c.input({64, 456}, DType::bf16), {1, 0});
      c.output(c.b.matmul(c.input({200, 456}, DType::bf16), w));
    });
  }
  template <class Build>
  void add(std::string name, Build&& build) {
    Contraction one;
    one.name = std::move(name);
    one.graph->target.device = lower::Device::cuda;
    one.graph->target.vector_bytes = 16;
    build(*one.graph);
    auto lowered = lower::contract::lower(lower::request_of(*one.graph));
    if (lowered) {
      one.lowered = *std::move(lowered);
      auto text = codegen::cuda::to_text(one.lowered.kernel, fmt::format("k{}", all.size()));
      if (text) {
        one.text = *std::move(text);
        all.push_back(std::move(one));
        return;
      }
      problems += one.name + ": " + text.error().message + "\n";
      return;
    }
    problems += one.name + ": " + lowered.error().message + "\n";
  }
};

const Contractions& contractions() {
  static const Contractions one;
  return one;
}

std::string run(const emulation::Module& module, const Contraction& one,
                const codegen::cuda::KernelText& text, Order order) {
  return lower::run(*one.graph, one.lowered,
                    [&](std::vector<std::vector<std::byte>>& memory) -> Status {
                      memory = HEDDLE_TRY(emulate(module, text, memory, order));
                      return Ok{};
                    });
}

void run_all(const emulation::CompileOptions& options, std::initializer_list<Order> orders) {
  ASSERT_EQ(contractions().problems, "");
  std::vector<std::string> units(2, codegen::cuda::unit_header());
  const auto& all = contractions().all;
  for (std::size_t i = 0; i < all.size(); ++i) units[i % 2] += all[i].text.text;
  std::vector<emulation::Module> modules;
  ASSERT_EQ(compile_all(units, options, modules), "");
  for (std::size_t i = 0; i < all.size(); ++i)
    for (Order order : orders)
      EXPECT_EQ(run(modules[i % 2], all[i], all[i].text, order), "")
          << all[i].name << all[i].text.text;
}

TEST(ContractionEmulation, AgreesInAllOrders) {
  run_all({}, {Order::forward, Order::reverse, Order::random});
}
/// Whichever block is first: parts are added in their own order.
TEST(ContractionEmulation, SumsAreTheSameInAllOrders) {
  std::string unit = codegen::cuda::unit_header();
  for (const Contraction& one : contractions().all)
    if (one.name.starts_with("sums ")) unit += one.text.text;
  std::vector<emulation::Module> modules;
  ASSERT_EQ(compile_all({unit}, {}, modules), "");
  int found = 0;
  for (const Contraction& one : contractions().all) {
    if (!one.name.starts_with("sums ")) continue;
    ++found;
    std::vector<std::vector<std::byte>> first;
    for (Order order : {Order::forward, Order::reverse, Order::random}) {
      const auto execute = [&](std::vector<std::vector<std::byte>>& memory) -> Status {
        memory = HEDDLE_TRY(emulate(modules[0], one.text, memory, order));
        if (first.empty()) first = memory;
        EXPECT_EQ(memory, first) << one.name;
        return Ok{};
      };
      EXPECT_EQ(lower::run(*one.graph, one.lowered, execute), "") << one.name;
    }
  }
  EXPECT_EQ(found, 11);
}
/// Splits are added by the blocks that made them, behind a grid barrier, unless the tuning forbids.
TEST(ContractionEmulation, SplitsShareALaunch) {
  int found = 0;
  for (const Contraction& one : contractions().all) {
    const std::size_t at = one.name.find(" splits ");
    if (at == std::string::npos) continue;
    ++found;
    const bool shared = one.name.ends_with('1');
    EXPECT_EQ(one.text.phases.size(), shared ? 1 : 2) << one.name;
    EXPECT_EQ(one.text.phases.front().cooperative, shared) << one.name;
  }
  EXPECT_EQ(found, 4);
}
TEST(ContractionEmulation, HasNoRaces) {
  run_all({.races = true}, {Order::forward, Order::random});
}
SANITIZED_TEST(ContractionEmulation) { run_all({.undefined = true}, {Order::forward}); }

TEST(ContractionEmulation, MissingSynchronisationIsFound) {
  struct Broken {
    const Contraction* kernel;
    codegen::cuda::KernelText text;
    std::string what;
  };
  std::vector<Broken> broken;
  std::string unit = codegen::cuda::unit_header();
  for (const Contraction& one : contractions().all) {
    if (!one.name.ends_with(" long")) continue;
    const std::string stem =
        one.text.phases[0].symbol.substr(0, one.text.phases[0].symbol.find('_') + 1);
    for (const Mutant& m : mutants_of(one.text.text, kSynchronisations)) {
      const std::string own = fmt::format("m{}_", broken.size());
      Broken b{&one, one.text, one.name + " without " + m.what};
      b.text.text = renamed(m.text, " " + stem, " " + own);
      for (auto& phase : b.text.phases) phase.symbol = renamed(phase.symbol, stem, own);
      unit += b.text.text;
      broken.push_back(std::move(b));
    }
  }
  ASSERT_GE(broken.size(), 10u);
  std::vector<emulation::Module> modules;
  ASSERT_EQ(compile_all({unit}, {.races = true}, modules), "");
  for (const Broken& b : broken)
    EXPECT_NE(first_notice([&](Order order) { return run(modules[0], *b.kernel, b.text, order); }),
              "")
        << b.what << b.text.text;
}

}  // namespace
}  // namespace heddle
