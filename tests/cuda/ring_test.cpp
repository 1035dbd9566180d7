// Weights that come through the ring of a persistent kernel, under the emulation and through the
// stand-in for the driver.
#include "driver/ring.h"

#include <dlfcn.h>

#include <algorithm>

#include "codegen/cuda/nvrtc.h"
#include "cuda_emulation/mutants.h"
#include "driver/report.h"
#include "monolith.h"
#include "runtime/artefact.h"
#include "runtime/cuda/ring.h"
#include "runtime/cuda/session.h"

namespace heddle::driver {
namespace {

using emulation::Order;

/// One token through products of odd sizes; the last ones are added up along their own rows.
void chain(Network& n) {
  NodeId x = n.in({1, 40});
  for (const auto& [from, to] : {std::pair{40, 52}, {52, 100}, {100, 37}})
    x = n.b.relu(n.b.matmul(x, n.weight({from, to})));
  n.out(n.b.softmax(x, {1}));
}
/// Weights stored as PyTorch stores them: [to, from].
void transposed(Network& n) {
  NodeId x = n.in({2, 48});
  for (const auto& [from, to] : {std::pair{48, 72}, {72, 36}, {36, 20}})
    x = n.b.relu(n.b.matmul(x, n.b.transpose(n.weight({to, from}), {1, 0})));
  n.out(x);
}
/// Few rows, biases, a residual.
void few_rows(Network& n) {
  const NodeId x = n.in({4, 64});
  const NodeId h = n.b.relu(n.linear(n.norm(x), 64, 88));
  n.out(n.b.add(x, n.linear(h, 88, 64)));
}
/// Large constants, in whose stages a barrier comes after the reads.
void tables(Network& n) {
  const NodeId x = n.in({90, 50});
  const NodeId y = n.b.softmax(n.b.mul(n.b.add(x, n.weight({90, 50})), n.weight({90, 50})), {1});
  n.out(n.b.add(n.b.mul(y, n.weight({90, 50})), n.weight({90, 50})));
}
/// Element by element: no barrier of a stage is behind its reads.
void elements(Network& n) {
  const NodeId x = n.in({90, 125});
  n.out(n.b.add(n.b.mul(x, n.weight({90, 125})), n.weight({90, 125})));
}
constexpr NamedNetwork kStreams[] = {{"chain", chain},       {"transposed", transposed},
                                     {"few rows", few_rows}, {"tables", tables},
                                     {"elements", elements}, {"decode", decode}};

CompileOptions with_ring(const std::string& ring) {
  CompileOptions options = stand_in("monolith");
  options.options.ring = ring;
  return options;
}

/// A network compiled with the ring, its schedule, and its text with a ring of the test's liking.
struct Made {
  Network network;
  Compiled compiled;
  runtime::Program program;
  std::vector<runtime::Stage> stages;
  runtime::cuda::MonolithTables direct, paged;  ///< without pages, with them
  std::string text;
};
/// `pages` of `page_bytes` in the place of what the GPU has room for.
std::unique_ptr<Made> make(const NamedNetwork& which, int blocks, int pages, int page_bytes) {
  auto made = std::make_unique<Made>();
  which.build(made->network);
  auto compiled = compile(made->network.g, with_ring("1"));
  EXPECT_TRUE(compiled.ok()) << which.name << ": " << compiled.error().message;
  if (!compiled || !(*compiled).program->persistent) return nullptr;
  made->compiled = *std::move(compiled);
  made->program = *made->compiled.program;
  runtime::PersistentKernel& kernel = *made->program.persistent;
  runtime::Ring& ring = kernel.ring;
  EXPECT_GT(ring.pages, 2);
  const auto text = [&] {
    return fmt::format("hd::Ring<{}, {}, {}, {}>", ring.pages, ring.page_bytes, ring.at,
                       kernel.threads);
  };
  const std::string was = text();
  ring.pages = pages, ring.page_bytes = page_bytes;
  kernel.shared_bytes = ring.end();
  made->text = text_of(made->program.objects.at(0));
  EXPECT_NE(made->text.find(was), std::string::npos);
  made->text = renamed(made->text, was, text());
  made->stages = runtime::cuda::spread(runtime::stages_of(made->program), blocks);
  const runtime::Schedule schedule = runtime::cuda::block_schedule(made->stages, blocks, {});
  EXPECT_TRUE(runtime::validate(made->stages, schedule, 32).ok());
  made->direct = made->paged = runtime::cuda::tables_of(schedule, {}, 0);
  runtime::cuda::add_pages(made->program, made->stages, made->paged);
  const Status valid = runtime::cuda::validate_ring(made->program, made->stages, made->paged);
  EXPECT_TRUE(valid.ok()) << valid.error().message;
  return made;
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(a, b, [](const Tensor& x, const Tensor& y) {
    return x.bytes() == y.bytes() &&
           std::memcmp(x.data(), y.data(), static_cast<std::size_t>(x.bytes())) == 0;
  });
}

struct RingSize {
  int pages, page_bytes;
};
/// Several steps of an item on their way; several pages a task; tasks of which none fits.
constexpr RingSize kSizes[] = {{3, 4096}, {5, 640}, {9, 256}, {2, 16384}, {4, 128}};

// Bits do not depend on where weights are read from, whatever the pages and the order.
TEST(Ring, AgreesInEveryOrderWithoutRaces) {
  constexpr int kBlocks = 3;
  std::size_t wide = 0, many = 0, direct = 0, left_out = 0;
  for (const NamedNetwork& which : kStreams)
    for (const RingSize& size : kSizes) {
      SCOPED_TRACE(fmt::format("{}, {} pages of {}", which.name, size.pages, size.page_bytes));
      const auto made = make(which, kBlocks, size.pages, size.page_bytes);
      ASSERT_TRUE(made);
      const auto module = emulation::compile(made->text, {.races = true});
      ASSERT_TRUE(module.ok()) << module.error().message;
      EmulatedMonolith paged(made->program, made->paged, kBlocks);
      EmulatedMonolith plain(made->program, made->direct, kBlocks);
      expect_agreement(made->network.g, [&](Order order, unsigned seed, const auto& inputs) {
        auto found = paged.run(*module, order, seed, inputs);
        const auto without = plain.run(*module, order, seed, inputs);
        EXPECT_TRUE(found && without && same_bits(*found, *without));
        return found;
      });
      for (const auto& step : made->paged.steps) {
        wide += step.count > 1 && step.last == step.first + 1;
        left_out += step.first == step.last;
      }
      for (const auto& item : made->paged.items) many += item.step_end - item.step > 2;
      for (const runtime::Stage& s : made->stages)
        direct += !made->program.launches[static_cast<std::size_t>(s.launch)]
                       .phases[static_cast<std::size_t>(s.phase)]
                       .grid.paged.empty() &&
                  runtime::cuda::paged_of(made->program, s).empty();
    }
  EXPECT_GT(wide, 10u);      // a task of several pages
  EXPECT_GT(many, 10u);      // an item of several steps
  EXPECT_GT(direct, 3u);     // a task larger than the ring
  EXPECT_GT(left_out, 10u);  // pages at the end of which a piece has no room
}

// What comes through pages is read there: with other bytes in them, results are others.
TEST(Ring, ResultsComeFromPages) {
  constexpr int kBlocks = 2;
  const auto made = make({"chain", chain}, kBlocks, 4, 4096);
  ASSERT_TRUE(made);
  ASSERT_FALSE(made->paged.loads.empty());
  const auto module = emulation::compile(made->text);
  ASSERT_TRUE(module.ok()) << module.error().message;
  auto wrong = made->paged;
  for (auto& load : wrong.loads) load.begin = 0;
  const auto inputs = inputs_of(made->network.g, 1);
  const auto wanted = prim::interpret(made->network.g, inputs);
  const auto found =
      EmulatedMonolith(made->program, wrong, kBlocks).run(*module, Order::forward, 1, inputs);
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_NE(difference(*found, *wanted), "");
  EXPECT_FALSE(runtime::cuda::validate_ring(made->program, made->stages, wrong).ok());
}

// A block brings its next weights while it waits for another one.
TEST(Ring, FillsAheadOfWhatItemsWaitFor) {
  constexpr int kBlocks = 2;
  const auto made = make({"chain", chain}, kBlocks, 6, 4096);
  ASSERT_TRUE(made);
  // No block waits for pages before it waits for others: the first ring of positions has no empty
  // page to wait for.
  for (int b = 0; b < kBlocks; ++b) {
    const auto i = static_cast<std::size_t>(b);
    int steps_behind_waits = 0;
    bool waited = false;
    for (int n = made->paged.first_item[i]; n < made->paged.first_item[i + 1]; ++n) {
      const auto& item = made->paged.items[static_cast<std::size_t>(n)];
      waited |= item.wait >= 0;
      for (int s = item.step; waited && s < item.step_end; ++s)
        steps_behind_waits += made->paged.steps[static_cast<std::size_t>(s)].position <
                              made->program.persistent->ring.pages;
    }
    EXPECT_GT(steps_behind_waits, 0) << b;
  }
}

std::string notice(const Made& made, const std::string& text, int blocks) {
  return driver::notice(made.network.g, made.program, made.paged, text, blocks);
}

// Blocks do not ask L2 for what their rings bring.
TEST(Ring, ConstantsAreBroughtOnce) {
  const auto made = make({"few rows", few_rows}, 2, 8, 4096);
  ASSERT_TRUE(made);
  std::size_t paged = 0;
  for (const runtime::Stage& stage : made->stages) {
    const auto& args = made->program.launches[static_cast<std::size_t>(stage.launch)].args;
    for (const runtime::Paged& p : runtime::cuda::paged_of(made->program, stage)) {
      ++paged;
      for (const auto& range : runtime::cuda::constants_of(made->program, stage))
        EXPECT_NE(range.constant, args[static_cast<std::size_t>(p.arg)].index);
    }
  }
  EXPECT_GE(paged, 2u);
}

/// The text with the prelude's functions of the ring written out in it.
std::string with_own_ring(const std::string& text) {
  std::string header;
  for (const codegen::cuda::Header& h : codegen::cuda::prelude())
    if (std::string(h.name) == "ring.cuh") header = h.text;
  const std::size_t begin = header.find("/// A page is full");
  const std::string include = "#include \"heddle.cuh\"\n";
  std::string functions = header.substr(begin, header.rfind("}  // namespace hd") - begin);
  for (const char* name : {"ring_begin(", "ring_fill(", "ring_walk("})
    functions = renamed(functions, name, "own_" + std::string(name));
  return include + "namespace own {\nusing namespace hd;\n" + functions + "}\n// end\n" +
         renamed(text.substr(text.find(include) + include.size()), "hd::ring_walk<",
                 "own::own_ring_walk<");
}

TEST(Ring, EverySynchronisationIsNeeded) {
  constexpr int kBlocks = 2;
  // In one of them stages end without a barrier, in the other blocks wait for each other.
  const std::unique_ptr<Made> both[] = {make({"elements", elements}, kBlocks, 3, 4096),
                                        make({"chain", chain}, kBlocks, 3, 4096)};
  std::vector<std::vector<Mutant>> mutants;
  for (const auto& made : both) {
    ASSERT_TRUE(made);
    EXPECT_GT(made->paged.loads.size(), 8u);
    const std::string text = with_own_ring(made->text);
    ASSERT_EQ(notice(*made, text, kBlocks), "");
    std::vector<Mutant>& own =
        mutants.emplace_back(mutants_of(text, kSynchronisations, 0, text.find("// end")));
    ASSERT_EQ(own.size(), 9u);
    for (const auto& [from, to] :
         {std::pair{"1 - R::parity(at)", "R::parity(at)"},
          {"R::page(at), R::parity(at))", "R::page(at), 1 - R::parity(at))"},
          {"mbarrier_init(ring.empty + p, R::kThreads / 32)", "mbarrier_init(ring.empty + p, 1)"},
          {"mbarrier_init(ring.full + p, 1)", "mbarrier_init(ring.full + p, 2)"}}) {
      own.push_back({renamed(text, from, to), to});
      ASSERT_NE(own.back().text, text) << from;
    }
  }
  for (std::size_t i = 0; i < mutants[0].size(); ++i) {
    std::string said;
    for (std::size_t n = 0; said.empty() && n < std::size(both); ++n)
      said = notice(*both[n], mutants[n][i].text, kBlocks);
    EXPECT_NE(said, "") << mutants[0][i].what;
  }
}

// Through the stand-in for the driver.

void set(const char* text) {
  static const auto call = reinterpret_cast<void (*)(const char*)>(
      ::dlsym(::dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL), "heddle_fake_set"));
  call(text);
}

TEST(Ring, RunsInASessionAndFromAFile) {
  set("sms=3,order=random,seed=5");
  for (const NamedNetwork& which : kStreams) {
    SCOPED_TRACE(which.name);
    Network n;
    which.build(n);
    const auto compiled = compile(n.g, with_ring("1"));
    ASSERT_TRUE(compiled.ok()) << compiled.error().message;
    const std::string path = ::testing::TempDir() + "/ring.heddle";
    ASSERT_TRUE(runtime::write_artefact(*compiled->program, path).ok());
    const auto read = runtime::read_artefact(path);
    ASSERT_TRUE(read.ok()) << read.error().message;
    ASSERT_EQ(read->persistent, compiled->program->persistent);
    EXPECT_GT(read->persistent->ring.pages, 0);
    for (std::size_t l = 0; l < read->launches.size(); ++l)
      for (std::size_t p = 0; p < read->launches[l].phases.size(); ++p)
        EXPECT_EQ(read->launches[l].phases[p].grid, compiled->program->launches[l].phases[p].grid);
    auto code = runtime::cuda::load_code(FAKE_CUDA, 0, *read);
    ASSERT_TRUE(code.ok()) << code.error().message;
    const auto session =
        runtime::cuda::create_session(std::make_shared<runtime::Program>(*read), *code, {});
    ASSERT_TRUE(session.ok()) << session.error().message;
    for (unsigned run = 0; run < 3; ++run) {
      const auto inputs = inputs_of(n.g, run);
      const auto found = (*session)->run(inputs);
      ASSERT_TRUE(found.ok()) << found.error().message;
      EXPECT_EQ(difference(*found, *prim::interpret(n.g, inputs)), "");
    }
  }
  set("");
}

TEST(Ring, MalformedOnesAreRefused) {
  Network n;
  transposed(n);
  const auto compiled = compile(n.g, with_ring("1"));
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  const auto said = [&](auto change) {
    runtime::Program p = *compiled->program;
    change(p, p.launches.front().phases.front().grid.paged.at(0));
    const std::string path = ::testing::TempDir() + "/malformed.heddle";
    EXPECT_TRUE(runtime::write_artefact(p, path).ok());
    const auto read = runtime::read_artefact(path);
    return read.ok() ? std::string("fine") : read.error().message;
  };
  EXPECT_EQ(said([](auto&, auto&) {}), "fine");
  EXPECT_NE(said([](auto&, auto& paged) { paged.arg = 99; }).find("malformed argument in pages"),
            std::string::npos);
  EXPECT_NE(said([](auto&, auto& paged) { paged.bytes = -1; }).find("malformed argument in pages"),
            std::string::npos);
  EXPECT_NE(said([](auto&, auto& paged) { paged.step = kMaxTensorBytes; }).find("in steps of"),
            std::string::npos);
  for (const auto& change :
       {+[](runtime::Ring& r) { r.pages = 9999; }, +[](runtime::Ring& r) { r.at += 1; },
        +[](runtime::Ring& r) { r.page_bytes = 0; }, +[](runtime::Ring& r) { ++r.pages; }})
    EXPECT_NE(said([&](auto& p, auto&) { change(p.persistent->ring); }).find("found a ring of"),
              std::string::npos);
}

// Weights that lie in the tasks' order anyway give the same bits with and without.
TEST(Ring, OffIsAsBefore) {
  set("sms=3");
  Network n;
  transposed(n);
  std::vector<std::vector<Tensor>> results;
  for (const char* ring : {"1", "off"}) {
    const auto compiled = compile(n.g, with_ring(ring));
    ASSERT_TRUE(compiled.ok()) << compiled.error().message;
    const bool on = std::string(ring) == "1";
    EXPECT_EQ(compiled->program->persistent->ring.pages > 0, on);
    EXPECT_EQ(text_of(compiled->program->objects.at(0)).find("hd::Ring<") != std::string::npos, on);
    EXPECT_EQ(ring_summary(*compiled).empty(), !on);
    auto code = runtime::cuda::load_code(FAKE_CUDA, 0, *compiled->program);
    ASSERT_TRUE(code.ok()) << code.error().message;
    const auto session = runtime::cuda::create_session(compiled->program, *code, {});
    ASSERT_TRUE(session.ok()) << session.error().message;
    auto found = (*session)->run(inputs_of(n.g, 9));
    ASSERT_TRUE(found.ok()) << found.error().message;
    results.push_back(*std::move(found));
  }
  EXPECT_TRUE(same_bits(results[0], results[1]));
  set("");
}

TEST(Ring, SaysWhatComesThroughItAndWhatDoesNot) {
  Network n;
  transposed(n);
  // A product of many rows copies its weights itself.
  const NodeId rows = n.in({70, 48});
  n.out(n.b.matmul(rows, n.weight({48, 64})));
  const auto compiled = compile(n.g, with_ring("1"));
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  std::string notes;
  for (const CompiledKernel& kernel : compiled->kernels)
    for (const std::string& note : kernel.code.ring_notes) notes += note + "\n";
  EXPECT_NE(notes.find("comes through the ring, "), std::string::npos) << notes;
  EXPECT_NE(notes.find("is read where it is: "), std::string::npos) << notes;
  EXPECT_NE(ring_summary(*compiled).find("stages get weights through them"), std::string::npos);
  EXPECT_NE(compiled->program->manifest.find("comes through the ring"), std::string::npos);
  // Items that read little do not.
  const auto few = compile(n.g, with_ring("1000000"));
  ASSERT_TRUE(few.ok()) << few.error().message;
  EXPECT_EQ(few->program->persistent->ring.pages, 0);
  // All stages pay for a ring: one weight of many is not worth it.
  const NodeId more = n.in({70, 512});
  n.out(n.b.matmul(more, n.weight({512, 256})));
  const auto one = compile(n.g, with_ring("1"));
  ASSERT_TRUE(one.ok()) << one.error().message;
  EXPECT_EQ(one->program->persistent->ring.pages, 0);
  EXPECT_NE(ring_summary(*one).find("none: it would bring "), std::string::npos)
      << ring_summary(*one);
  // Nor does anything where tasks read in another order.
  Network apart;
  apart.out(apart.b.matmul(apart.in({70, 48}), apart.weight({48, 64})));
  const auto none = compile(apart.g, with_ring("1"));
  ASSERT_TRUE(none.ok()) << none.error().message;
  EXPECT_EQ(ring_summary(*none), "none: tasks go through no large constant in order");
  CompileOptions old = with_ring("1");
  old.arch = "sm_80";
  old.options.nvrtc.clear();
  old.options.cuda_driver = "/nonexistent/libcuda.so.1";
  const auto ampere = compile(n.g, old);
  ASSERT_TRUE(ampere.ok()) << ampere.error().message;
  EXPECT_EQ(ampere->program->persistent->ring.pages, 0);
}

/// Two blocks and the head of a decode step, as wide as real ones.
void wide(Network& n) {
  NodeId x = n.in({1, 512});
  for (int block = 0; block < 2; ++block) {
    const NodeId mixed = n.linear(n.b.relu(n.linear(n.norm(x), 512, 1536)), 1536, 512);
    x = n.b.add(x, mixed);
    x = n.b.add(x, n.linear(n.b.relu(n.linear(n.norm(x), 512, 2048)), 2048, 512));
  }
  n.out(n.b.matmul(n.norm(x), n.weight({512, 8192})));
}

/// NVRTC itself, and a real GPU's room.
TEST(Ring, CompilesWithoutSpillsAndFits) {
  ASSERT_FALSE(codegen::cuda::find_library("nvrtc", "").empty())
      << "scripts/venv.sh installs it, tests run in the project's root";
  Network n;
  wide(n);
  CompileOptions options = with_ring("auto");
  options.arch = "sm_90a";
  options.options.nvrtc.clear();
  options.options.cuda_driver = "/nonexistent/libcuda.so.1";
  for (const DType precision : {DType::bf16, DType::f32}) {
    options.precision = precision;
    const auto compiled = compile(n.g, options);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message;
    ASSERT_TRUE(compiled->program->persistent.has_value()) << compiled->mode.reason;
    const runtime::PersistentKernel& kernel = *compiled->program->persistent;
    EXPECT_GE(kernel.ring.pages, 12);
    EXPECT_GE(kernel.shared_bytes, kernel.ring.end());
    EXPECT_LE(kernel.shared_bytes, 227 << 10);
    EXPECT_EQ(kernel.block_threads(), 288);
    std::size_t paged = 0;
    for (const CompiledKernel& k : compiled->kernels) {
      for (const auto& phase : k.code.phases) paged += phase.grid.paged.size();
      for (const auto& f : k.code.functions) {
        EXPECT_EQ(f.spill_bytes, 0) << f.symbol;
        EXPECT_LE(f.registers, 224);
      }
    }
    EXPECT_GE(paged, 9u);
    const auto stages = runtime::stages_of(*compiled->program);
    auto tables = runtime::cuda::tables_of(runtime::cuda::block_schedule(stages, 132, {}), {}, 0);
    runtime::cuda::add_pages(*compiled->program, stages, tables);
    EXPECT_TRUE(runtime::cuda::validate_ring(*compiled->program, stages, tables).ok());
    std::int64_t bytes = 0;
    for (const auto& load : tables.loads) bytes += load.bytes;
    // Each weight once, but for the units that steps share.
    std::int64_t weights = 2 * (2 * 512 * 1536 + 2 * 512 * 2048) + 512 * 8192;
    weights *= precision == DType::bf16 ? 2 : 4;
    EXPECT_GE(bytes, weights);
    EXPECT_LE(bytes, weights + weights / 50);
  }
}

}  // namespace
}  // namespace heddle::driver
