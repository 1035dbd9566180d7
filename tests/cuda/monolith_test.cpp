// Whole networks as one persistent kernel, under the emulation and through the stand-in for the
// driver.
#include "monolith.h"

#include <dlfcn.h>

#include <map>
#include <set>

#include "codegen/cuda/nvrtc.h"
#include "cuda_emulation/mutants.h"
#include "driver/group_tuning.h"
#include "runtime/artefact.h"
#include "runtime/cuda/session.h"
#include "runtime/schedule.h"

namespace heddle::driver {
namespace {

using emulation::Order;

struct Made {
  Network network;
  Compiled compiled;
  std::vector<runtime::Stage> stages;
  std::string text;
};
std::unique_ptr<Made> make(const NamedNetwork& which, int blocks) {
  auto made = std::make_unique<Made>();
  which.build(made->network);
  auto compiled = compile(made->network.g, stand_in("monolith"));
  EXPECT_TRUE(compiled.ok()) << which.name << ": " << compiled.error().message;
  if (!compiled) return nullptr;
  made->compiled = *std::move(compiled);
  EXPECT_TRUE(made->compiled.program->persistent.has_value());
  made->stages = runtime::cuda::spread(runtime::stages_of(*made->compiled.program), blocks);
  made->text = text_of(made->compiled.program->objects.at(0));
  return made;
}

TEST(Monolith, AgreesInEveryOrderWithoutRaces) {
  constexpr int kBlocks = 3;
  for (const NamedNetwork& which : kNetworks) {
    SCOPED_TRACE(which.name);
    const auto made = make(which, kBlocks);
    ASSERT_TRUE(made);
    std::size_t tasks = 0;
    for (const runtime::Stage& stage : made->stages) tasks += static_cast<std::size_t>(stage.tasks);
    EXPECT_GT(tasks, made->stages.size());
    const runtime::Schedule schedule = runtime::cuda::block_schedule(made->stages, kBlocks, {});
    ASSERT_TRUE(runtime::validate(made->stages, schedule, 32).ok());
    EXPECT_GT(schedule.waits.size(), 0u);
    const auto module = emulation::compile(made->text, {.races = true});
    ASSERT_TRUE(module.ok()) << module.error().message;
    EmulatedMonolith monolith(*made->compiled.program, runtime::cuda::tables_of(schedule, {}, 0),
                              kBlocks);
    expect_agreement(made->network.g, [&](Order order, unsigned seed, const auto& inputs) {
      return monolith.run(*module, order, seed, inputs);
    });
  }
}

std::string notice(const Made& made, const std::string& text, const runtime::Schedule& schedule,
                   int blocks) {
  return driver::notice(made.network.g, *made.compiled.program,
                        runtime::cuda::tables_of(schedule, {}, 0), text, blocks);
}

TEST(Monolith, EveryWaitIsNeeded) {
  constexpr int kBlocks = 2;
  const auto made = make({"mlp", mlp}, kBlocks);
  ASSERT_TRUE(made);
  const runtime::Schedule schedule = runtime::cuda::block_schedule(made->stages, kBlocks, {});
  ASSERT_EQ(notice(*made, made->text, schedule, kBlocks), "");
  int count = 0;
  for (std::size_t w = 0; w < schedule.items.size(); ++w)
    for (std::size_t i = 0; i < schedule.items[w].size(); ++i) {
      if (schedule.items[w][i].wait < 0) continue;
      runtime::Schedule without = schedule;
      without.items[w][i].wait = -1;
      EXPECT_NE(notice(*made, made->text, without, kBlocks), "") << w << " " << i;
      EXPECT_FALSE(runtime::validate(made->stages, without, 32).ok()) << w << " " << i;
      ++count;
    }
  EXPECT_GE(count, 4);
}

/// The text with each stage in the form for `factor` tasks together; how many of them load first.
std::string with_factor(const Made& made, int factor, int* loading_first) {
  std::string text = made.text;
  std::set<std::string> done;
  for (const CompiledKernel& kernel : made.compiled.kernels) {
    if (!done.insert(kernel.code.source).second) continue;
    const std::string& symbol = kernel.code.phases.at(0).symbol;
    const auto own = codegen::cuda::to_stages(kernel.lowered.kernel,
                                              symbol.substr(0, symbol.rfind('_')), {factor});
    EXPECT_TRUE(own.ok());
    // Comments hold the kernels' names.
    const std::size_t from = kernel.code.source.find("HD_STAGE");
    const std::string wanted = kernel.code.source.substr(from);
    const std::size_t at = text.find(wanted);
    EXPECT_NE(at, std::string::npos) << symbol;
    if (!own || at == std::string::npos) continue;
    text.replace(at, wanted.size(), own->text.substr(own->text.find("HD_STAGE")));
    *loading_first += own->text.find("// kept") != std::string::npos;
  }
  return text;
}

// Several tasks whose loads come first, and what is left of a number that they do not divide.
TEST(Monolith, TasksTogetherAgree) {
  constexpr int kBlocks = 2;
  int loading_first = 0;
  for (const NamedNetwork& which : kNetworks) {
    SCOPED_TRACE(which.name);
    const auto made = make(which, kBlocks);
    ASSERT_TRUE(made);
    const runtime::Schedule schedule = runtime::cuda::block_schedule(made->stages, kBlocks, {});
    EXPECT_EQ(notice(*made, with_factor(*made, 2, &loading_first), schedule, kBlocks), "");
  }
  EXPECT_GE(loading_first, 2);
}

/// The text with the prelude's functions of monoliths written out in it.
std::string with_own_walk(const std::string& text) {
  std::string header;
  for (const codegen::cuda::Header& h : codegen::cuda::prelude())
    if (std::string(h.name) == "monolith.cuh") header = h.text;
  const std::size_t begin = header.find("/// Until the blocks of wait");
  const std::string include = "#include \"heddle.cuh\"\n";
  const std::string functions = header.substr(begin, header.rfind("}  // namespace hd") - begin);
  return include + "namespace own {\nusing namespace hd;\n" +
         renamed(renamed(renamed(functions, "monolith_wait(", "own_wait("), "monolith_walk(",
                         "own_walk("),
                 "monolith_items(", "own_items(") +
         "}\n// end\n" +
         renamed(text.substr(text.find(include) + include.size()), "hd::monolith_walk(",
                 "own::own_walk(");
}

TEST(Monolith, EverySynchronisationOfTheWalkIsNeeded) {
  constexpr int kBlocks = 2;
  // Norms have no shared memory, whose barriers would stand in for those of the walk.
  const auto made = make({"transformer", transformer}, kBlocks);
  ASSERT_TRUE(made);
  const runtime::Schedule schedule = runtime::cuda::block_schedule(made->stages, kBlocks, {});
  const std::string text = with_own_walk(made->text);
  ASSERT_EQ(notice(*made, text, schedule, kBlocks), "");
  const std::size_t end = text.find("// end");
  std::vector<Mutant> mutants = mutants_of(text, R"(team.meet\(\);)", 0, end);
  ASSERT_EQ(mutants.size(), 2u);
  for (Mutant& m : mutants_of(
           text, R"((own_wait\(m, run|if \(threadIdx.x == 0\) store_release\()[^;]*\);)", 0, end))
    mutants.push_back(std::move(m));
  ASSERT_EQ(mutants.size(), 4u);
  // Weakened to what orders nothing.
  mutants.push_back({renamed(text, "load_acquire(&m", "load_relaxed(&m"), "acquire"});
  mutants.push_back(
      {renamed(text, "store_release(&own.items, base + static_cast<u32>(i - begin) + 1)",
               "add_relaxed(&own.items, 1u)"),
       "release"});
  for (const Mutant& m : mutants) {
    ASSERT_NE(m.text, text) << m.what;
    EXPECT_NE(notice(*made, m.text, schedule, kBlocks), "") << m.what;
  }
}

/// Each byte of a stage's weights is asked for once, and nothing else is.
TEST(Monolith, ConstantsAreAskedForOnce) {
  constexpr int kBlocks = 3;
  const auto made = make({"mlp", mlp}, kBlocks);
  ASSERT_TRUE(made);
  const runtime::Program& p = *made->compiled.program;
  const runtime::Schedule schedule = runtime::cuda::block_schedule(made->stages, kBlocks, {});
  const auto read = [&](int s) {
    return runtime::cuda::constants_of(p, made->stages[static_cast<std::size_t>(s)]);
  };
  const auto tables = runtime::cuda::tables_of(schedule, read, 1 << 20);
  std::map<std::pair<int, std::int64_t>, std::set<std::int64_t>> asked;  // by stage and constant
  for (const auto& item : tables.items)
    for (int r = item.fetch; r < item.fetch_end; ++r) {
      const auto& range = tables.ranges[static_cast<std::size_t>(r)];
      for (std::int64_t i = 0; i < range.bytes; ++i)
        EXPECT_TRUE((asked[{item.stage, range.constant}].insert(range.begin + i).second));
    }
  std::int64_t weights = 0;
  for (int s = 0; s < std::ssize(made->stages); ++s)
    for (const auto& range : read(s)) {
      EXPECT_EQ((std::ssize(asked[{s, range.constant}])), range.bytes);
      weights += range.bytes;
    }
  EXPECT_GE(weights, 4 * (3 * 40 * 40 + 40 * 130));
  std::int64_t few = 0;
  for (const auto& range : runtime::cuda::tables_of(schedule, read, 1000).ranges)
    few += range.bytes;
  EXPECT_LE(few, 1000 * std::ssize(made->stages));
}

TEST(Monolith, CountersGoRound) {
  constexpr int kBlocks = 2;
  const auto made = make({"decode", decode}, kBlocks);
  ASSERT_TRUE(made);
  const runtime::Schedule schedule = runtime::cuda::block_schedule(made->stages, kBlocks, {});
  const auto module = emulation::compile(made->text, {.races = true});
  ASSERT_TRUE(module.ok());
  EmulatedMonolith monolith(*made->compiled.program, runtime::cuda::tables_of(schedule, {}, 0),
                            kBlocks);
  const auto items = static_cast<unsigned>(schedule.items[0].size());
  // Counters pass 2^31, then 2^32, during the runs.
  for (unsigned runs : {0x7fffffffu / items, 0xffffffffu / items, 0xfffffffeu}) {
    monolith.set_runs(runs);
    for (unsigned run = 0; run < 3; ++run) {
      const auto inputs = inputs_of(made->network.g, run);
      const auto found = monolith.run(*module, Order::random, run, inputs);
      ASSERT_TRUE(found.ok()) << found.error().message;
      EXPECT_EQ(difference(*found, *prim::interpret(made->network.g, inputs)), "");
    }
  }
}

TEST(Monolith, AWaitInVainEnds) {
  constexpr int kBlocks = 2;
  const auto made = make({"mlp", mlp}, kBlocks);
  ASSERT_TRUE(made);
  runtime::Schedule schedule = runtime::cuda::block_schedule(made->stages, kBlocks, {});
  const auto tables = runtime::cuda::tables_of(schedule, {}, 0);
  auto broken = tables;
  broken.waits.back().items += 100;
  const auto module = emulation::compile(made->text);
  ASSERT_TRUE(module.ok());
  EmulatedMonolith monolith(*made->compiled.program, broken, kBlocks);
  monolith.patience = 50;
  const auto found = monolith.run(*module, Order::forward, 1, inputs_of(made->network.g, 1));
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.error().message.find("trap"), std::string::npos) << found.error().message;
  const auto failure = monolith.failure();
  ASSERT_EQ(failure.failed, 1u);
  const std::string said =
      runtime::cuda::describe(failure, *made->compiled.program, made->stages, tables);
  EXPECT_NE(said.find("waited in vain for block"), std::string::npos) << said;
}

// Through the stand-in for the driver.

Result<std::shared_ptr<runtime::Session>> session_of(const runtime::Program& program, int blocks) {
  auto code = HEDDLE_TRY(runtime::cuda::load_code(FAKE_CUDA, 0, program));
  runtime::cuda::SessionOptions options;
  options.blocks = blocks;
  return runtime::cuda::create_session(std::make_shared<runtime::Program>(program), code, options);
}
void set(const char* text) {
  static const auto call = reinterpret_cast<void (*)(const char*)>(
      ::dlsym(::dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL), "heddle_fake_set"));
  call(text);
}
int launches() {
  static const auto call = reinterpret_cast<int (*)(const char*)>(
      ::dlsym(::dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL), "heddle_fake_calls"));
  return call("cuLaunchKernelEx");
}

TEST(Monolith, RunsAsOneLaunchAndFromAFile) {
  for (const NamedNetwork& which : kNetworks) {
    SCOPED_TRACE(which.name);
    set("sms=3,order=random,seed=5");
    const auto made = make(which, 3);
    ASSERT_TRUE(made);
    const std::string path = ::testing::TempDir() + "/monolith.heddle";
    ASSERT_TRUE(runtime::write_artefact(*made->compiled.program, path).ok());
    const auto read = runtime::read_artefact(path);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->persistent, made->compiled.program->persistent);
    const auto session = session_of(*read, 0);
    ASSERT_TRUE(session.ok()) << session.error().message;
    const int before = launches();
    for (unsigned run = 0; run < 4; ++run) {  // the second one is captured
      const auto inputs = inputs_of(made->network.g, run);
      const auto found = (*session)->run(inputs);
      ASSERT_TRUE(found.ok()) << found.error().message;
      EXPECT_EQ(difference(*found, *prim::interpret(made->network.g, inputs)), "");
    }
    EXPECT_EQ(launches(), before + 2);
    const auto times = (*session)->profile(inputs_of(made->network.g, 1));
    ASSERT_TRUE(times.ok()) << times.error().message;
    EXPECT_EQ(times->size(), made->compiled.program->launches.size());
    for (const auto& t : *times) EXPECT_GT(t.seconds, 0) << t.name;
  }
  set("");
}

TEST(Monolith, MoreBlocksThanAreResidentAreAnError) {
  set("sms=2");
  const auto made = make({"mlp", mlp}, 2);
  ASSERT_TRUE(made);
  const auto most = session_of(*made->compiled.program, 1 << 20);
  ASSERT_FALSE(most.ok());
  EXPECT_NE(most.error().message.find("are resident at once"), std::string::npos)
      << most.error().message;
  EXPECT_TRUE(session_of(*made->compiled.program, 1).ok());
  set("");
}

TEST(Monolith, EqualFunctionsAreOne) {
  const auto made = make({"mlp", mlp}, 2);  // three hidden layers, two of them alike
  ASSERT_TRUE(made);
  std::set<std::string> symbols;
  for (const auto& launch : made->compiled.program->launches)
    for (const auto& phase : launch.phases) symbols.insert(phase.symbol);
  EXPECT_LT(symbols.size(), made->stages.size());
  for (const std::string& symbol : symbols) {
    const std::string head = "HD_STAGE void " + symbol + "(";
    const std::size_t at = made->text.find(head);
    ASSERT_NE(at, std::string::npos);
    EXPECT_EQ(made->text.find(head, at + 1), std::string::npos);
  }
}

/// NVRTC itself, for both architectures.
TEST(Monolith, CompilesWithoutSpills) {
  ASSERT_FALSE(codegen::cuda::find_library("nvrtc", "").empty())
      << "scripts/venv.sh installs it, tests run in the project's root";
  for (const char* arch : {"sm_80", "sm_90a"})
    for (const NamedNetwork& which : kNetworks) {
      Network n;
      which.build(n);
      CompileOptions options = stand_in("monolith");
      options.arch = arch;
      options.options.nvrtc.clear();
      options.options.cuda_driver = "/nonexistent/libcuda.so.1";
      options.precision = DType::bf16;
      const auto compiled = compile(n.g, options);
      ASSERT_TRUE(compiled.ok()) << compiled.error().message;
      ASSERT_TRUE(compiled->program->persistent.has_value()) << compiled->mode.reason;
      for (const CompiledKernel& kernel : compiled->kernels)
        for (const auto& f : kernel.code.functions) {
          EXPECT_EQ(f.spill_bytes, 0) << arch << " " << which.name << " " << f.symbol;
          EXPECT_GT(f.registers, 0);
        }
    }
}

/// Equal stages are timed once, settings apart; what is timed is a sum, not a product.
// Blocks are workers of their own, also on one multiprocessor; only items with waits have waited.
TEST(Monolith, TimesItsItemsByBlock) {
  using runtime::Schedule;
  std::vector<runtime::Stage> stages(2);
  stages[0] = {0, 0, 2, 2, 1e-6, {{0, true, {{0, 64}, {64, 128}}}}};
  stages[1] = {1, 0, 2, 2, 1e-6, {{0, false, {{0, 128}}}}};
  const Schedule schedule{{{{0, 0, 1}, {1, 0, 1, 0}}, {{0, 1, 2}, {1, 1, 2, 1}}}, {{0, 1}, {1, 0}}};
  ASSERT_TRUE(runtime::validate(stages, schedule, 32).ok());
  const auto tables = runtime::cuda::tables_of(schedule, {}, 0);
  std::vector<runtime::cuda::MonolithTimes> rows;
  for (std::uint64_t block = 0; block < 2; ++block) {  // a cycle is a nanosecond
    rows.push_back({{10, 12, 100}});
    rows.push_back({{100, 150, 200}});
    rows.push_back({{1000, 10, 1190, 200, 7}});
  }
  const auto items = runtime::cuda::item_times(stages, tables, rows);
  ASSERT_EQ(items.size(), 4u);
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(items[i].worker, static_cast<int>(i / 2));
    EXPECT_EQ(items[i].multiprocessor, 7);
    EXPECT_EQ(items[i].launch, static_cast<int>(i % 2));
    EXPECT_NEAR(items[i].waited, i % 2 == 0 ? 0 : 50e-9, 1e-12);
    EXPECT_NEAR(items[i].end, i % 2 == 0 ? 90e-9 : 190e-9, 1e-12);
  }
}

TEST(GroupTuning, TimesEachGroupOnceForEachSetting) {
  const auto groups = [](const Platform::Persistent& setting) {
    if (setting.blocks == 4) return std::vector<StageGroup>{};  // cannot be made
    return std::vector<StageGroup>{{hash_bytes("a"), 24, {1, 2, 4, 8}}, {hash_bytes("b"), 12, {1}}};
  };
  int calls = 0;
  const auto time = [&](const Platform::Persistent& s, std::size_t group, int factor) {
    ++calls;
    return std::optional<double>(group == 0 ? std::abs(factor - 4) + s.blocks : s.threads / 256);
  };
  const GroupTuning tuned = tune_groups(persistent_settings(), groups, time, 1e9);
  EXPECT_EQ(calls, 6 * 5);
  EXPECT_EQ(tuned.timed, calls);
  EXPECT_EQ(tuned.setting.threads, 256);
  EXPECT_EQ(tuned.setting.blocks, 1);
  EXPECT_EQ(tuned.setting.factors.at(hash_bytes("a")), 4);
  EXPECT_EQ(tuned.seconds, 24 * 1 + 12 * 1);
  EXPECT_NEAR(tuned.naive_log10, 24 * std::log10(4.0) + std::log10(8.0), 1e-9);
  EXPECT_NEAR(tuned.reduced_log10, std::log10(30.0), 1e-9);
  EXPECT_NE(to_string(tuned).find(
                "10^15.4 programs to choose from, 10^1.5 candidates of groups apart, 30 timed"),
            std::string::npos)
      << to_string(tuned);
}

/// A setting in which a group does not run is left at once; without time only the first that runs
/// is measured, and the space is as large as it was.
TEST(GroupTuning, EndsWhereNothingIsToBeFound) {
  int lowered = 0, calls = 0;
  const auto groups = [&](const Platform::Persistent&) {
    ++lowered;
    return std::vector<StageGroup>{{hash_bytes("a"), 2, {1, 2}}, {hash_bytes("b"), 3, {1}}};
  };
  const auto time = [&](const Platform::Persistent& s, std::size_t, int) -> std::optional<double> {
    ++calls;
    if (s.threads == 256 && s.blocks == 1) return std::nullopt;
    return 1;
  };
  const GroupTuning tuned = tune_groups(persistent_settings(), groups, time, 0);
  EXPECT_EQ(lowered, 2);
  EXPECT_EQ(calls, 2 + 3);
  EXPECT_EQ(tuned.timed, 3);
  EXPECT_EQ(tuned.setting.blocks, 2);
  EXPECT_NEAR(tuned.reduced_log10, std::log10(8 * 3.0), 1e-9);
}

/// Two small products with a softmax behind them, within the stand-in's patience.
void small(Network& n) {
  const NodeId x = n.in({64, 48});
  n.out(n.b.softmax(n.b.add(n.linear(n.b.exp(x), 48, 40), 1), {1}));
}
void expect_right(const Network& n, const runtime::Program& program) {
  const auto session = session_of(program, 0);
  ASSERT_TRUE(session.ok()) << session.error().message;
  const auto inputs = inputs_of(n.g, 1);
  const auto found = (*session)->run(inputs);
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(difference(*found, *prim::interpret(n.g, inputs)), "");
}

// Where no stage can be timed, the monolith is what it would be without a budget.
TEST(GroupTuning, IsNotNeededToCompile) {
  set("sms=2,fail=cuLaunchKernelEx:0:2");
  Network n;
  small(n);
  CompileOptions options = stand_in("monolith");
  options.budget = "1";
  const auto compiled = compile(n.g, options);
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  EXPECT_TRUE(compiled->program->persistent.has_value());
  EXPECT_NE(compiled->mode.reason.find("groups not tuned: "), std::string::npos)
      << compiled->mode.reason;
  EXPECT_NE(compiled->program->manifest.find("groups not tuned: "), std::string::npos);
  set("sms=2");
  expect_right(n, *compiled->program);
  set("");
}

TEST(Monolith, AutoMeasuresBothOnAGpu) {
  set("sms=2");
  Network n;
  small(n);
  CompileOptions options = stand_in("auto");
  const auto unmeasured = compile(n.g, options);
  ASSERT_TRUE(unmeasured.ok()) << unmeasured.error().message;
  EXPECT_EQ(unmeasured->mode.chosen, "kernels");
  EXPECT_NE(unmeasured->mode.reason.find("measured with a budget only"), std::string::npos);
  options.budget = "1";
  const auto compiled = compile(n.g, options);
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  const ModeReport& mode = compiled->mode;
  // Kernels against the fastest of these layouts.
  std::set<std::string> names;
  for (const auto& [name, us] : mode.measured) names.insert(name);
  EXPECT_EQ(names,
            (std::set<std::string>{"kernels", "monolith", "monolith:barriers", "monolith:longest",
                                   "monolith:grain=4,depth", "monolith:tuned"}));
  ASSERT_EQ(mode.measured.size(), 6u) << mode.reason;
  EXPECT_EQ(mode.measured[0].first, "kernels");
  const bool monolith = mode.measured[1].second < mode.measured[0].second;
  EXPECT_EQ(mode.chosen, mode.measured[monolith].first);
  EXPECT_EQ(compiled->program->persistent.has_value(), monolith);
  EXPECT_NE(compiled->program->manifest.find("fastest of 2 measured"), std::string::npos);
  expect_right(n, *compiled->program);
  // What cannot be timed runs as kernels.
  set("sms=2,fail=cuLaunchKernelEx:0:2");
  const auto untimed = compile(n.g, options);
  ASSERT_TRUE(untimed.ok()) << untimed.error().message;
  EXPECT_EQ(untimed->mode.chosen, "kernels");
  EXPECT_NE(untimed->mode.reason.find("auto: not measured: "), std::string::npos);
  set("");
}

TEST(GroupTuning, IsPartOfCompilingWithABudget) {
  set("sms=2");
  Network n;
  small(n);
  CompileOptions options = stand_in("monolith");
  options.budget = "1";
  const auto compiled = compile(n.g, options);
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  const ModeReport& mode = compiled->mode;
  EXPECT_NE(mode.reason.find("groups tuned alone"), std::string::npos) << mode.reason;
  EXPECT_NE(mode.reason.find("fastest of 5 measured"), std::string::npos) << mode.reason;
  EXPECT_NE(mode.tuning.find("pairs of stages alone"), std::string::npos) << mode.tuning;
  const auto best = std::ranges::min_element(mode.measured, {},
                                             [](const auto& measured) { return measured.second; });
  EXPECT_EQ(mode.chosen, best->first);
  ASSERT_TRUE(compiled->program->monolith.has_value());
  expect_right(n, *compiled->program);
  // Each layout alone, stages tuned among them.
  for (const std::string layout : {"monolith:barriers", "monolith:tuned"}) {
    options.mode = layout;
    const auto own = compile(n.g, options);
    ASSERT_TRUE(own.ok()) << own.error().message;
    EXPECT_EQ(own->mode.chosen, layout);
    EXPECT_NE(own->mode.reason.find("groups tuned alone"), std::string::npos) << own->mode.reason;
    EXPECT_EQ(own->program->monolith->own.empty(), layout != "monolith:tuned");
    expect_right(n, *own->program);
  }
  set("");
}

}  // namespace
}  // namespace heddle::driver
