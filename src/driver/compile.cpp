#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <unordered_map>
#include <utility>

#include "driver/assemble.h"
#include "driver/choose.h"
#include "driver/code_cache.h"
#include "driver/cuda_code.h"
#include "driver/driver.h"
#include "driver/dump.h"
#include "driver/group_tuning.h"
#include "driver/lower_plan.h"
#include "driver/measure.h"
#include "driver/memory.h"
#include "driver/mode.h"
#include "driver/planning.h"
#include "driver/report.h"
#include "prim/precision.h"
#include "support/hash.h"
#include "support/log.h"

namespace heddle::driver {
namespace {

class Stopwatch {
 public:
  explicit Stopwatch(std::vector<PhaseTime>& times) : times_(times) {}
  void lap(std::string name) {
    const auto now = std::chrono::steady_clock::now();
    times_.push_back({std::move(name), std::chrono::duration<double>(now - last_).count()});
    last_ = now;
  }

  /// While it lives, time counts for the phase `name` and not for the lap it is in.
  class Pause {
   public:
    Pause(Stopwatch& watch, std::string name) : watch_(watch), name_(std::move(name)) {}
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
    ~Pause() {
      const auto took = std::chrono::steady_clock::now() - begin_;
      watch_.last_ += took;
      auto& times = watch_.times_;
      auto at = std::find_if(times.begin(), times.end(),
                             [&](const PhaseTime& t) { return t.name == name_; });
      if (at == times.end()) at = times.insert(times.end(), {name_, 0});
      at->seconds += std::chrono::duration<double>(took).count();
    }

   private:
    Stopwatch& watch_;
    const std::string name_;
    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  };

 private:
  std::vector<PhaseTime>& times_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// Generates code for the CPU, equal kernels once, and gives each kernel its symbols.
Result<std::vector<std::string>> generate(std::vector<CompiledKernel>& kernels,
                                          const codegen::cpu::Machine& machine,
                                          const CompileOptions& options, ThreadPool& pool) {
  std::unordered_map<Hash, std::size_t> index;
  std::vector<kernel::Kernel> unique;
  std::vector<std::size_t> code_of;
  for (const CompiledKernel& kernel : kernels) {
    kernel::Kernel nameless = without_names(kernel.lowered.kernel);
    const Hash key = hash_bytes(kernel::to_string(nameless));
    const auto [entry, fresh] = index.try_emplace(key, unique.size());
    if (fresh) unique.push_back(std::move(nameless));
    code_of.push_back(entry->second);
  }
  const auto progress = [&](double share) {
    if (options.progress) options.progress("generating code", share);
  };
  Code code = HEDDLE_TRY(generate_code(unique, machine, options.options.cache_dir, pool, progress));
  for (std::size_t k = 0; k < kernels.size(); ++k)
    kernels[k].code = to_code(code.kernels[code_of[k]]);
  log(LogLevel::info, "{} kernels, {} distinct; {} batches compiled, {} from the cache",
      kernels.size(), unique.size(), code.compiled, code.reused);
  return std::move(code.objects);
}

/// The same for the GPU: the text is there already, and equal text is compiled once.
Result<std::vector<std::string>> generate_cubins(std::vector<CompiledKernel>& kernels,
                                                 const Platform& platform,
                                                 const CompileOptions& options, ThreadPool& pool) {
  if (platform.persistent) {
    std::vector<KernelCode*> codes;
    for (CompiledKernel& kernel : kernels) codes.push_back(&kernel.code);
    return compile_persistent(codes, platform, options.options);
  }
  std::unordered_map<std::string, std::size_t> index;
  std::vector<KernelCode> unique;
  for (const CompiledKernel& kernel : kernels)
    if (index.try_emplace(kernel.code.source, unique.size()).second) unique.push_back(kernel.code);
  const auto progress = [&](double share) {
    if (options.progress) options.progress("compiling CUDA", share);
  };
  std::vector<std::string> objects =
      HEDDLE_TRY(compile_cuda(unique, platform, options.options, pool, progress));
  for (CompiledKernel& kernel : kernels)
    kernel.code.functions = unique[index.at(kernel.code.source)].functions;
  add_units(kernels, objects, platform, options);
  log(LogLevel::info, "{} kernels, {} distinct", kernels.size(), unique.size());
  return objects;
}

}  // namespace

Result<std::string> source_of(const CompiledKernel& kernel, const Platform& platform) {
  if (platform.cuda) return kernel.code.source;
  return codegen::cpu::to_llvm_text(kernel.lowered.kernel, platform.cpu);
}

int machine_threads() {
  // Not all that the machine has: taskset, mpirun and containers leave a process some of them.
  cpu_set_t mine;
  if (::sched_getaffinity(0, sizeof mine, &mine) == 0) return std::max(1, CPU_COUNT(&mine));
  const unsigned count = std::thread::hardware_concurrency();  // over 1024 processors
  return count == 0 ? 1 : static_cast<int>(count);
}

MemoryReport memory_of(const runtime::Program& program, int threads) {
  MemoryReport m;
  for (const Tensor& c : program.constants) m.constants += c.bytes();
  for (const auto* list : {&program.inputs, &program.outputs})
    for (const runtime::Port& port : *list)
      m.ports += element_count(port.type.shape) * size_of(port.type.dtype);
  m.arena = program.arena_bytes;
  m.scratch = program.scratch_bytes * threads;
  m.bytes = m.constants + m.ports + m.arena + m.scratch;
  return m;
}

Result<codegen::cpu::Machine> machine_for(const Options& options) {
  codegen::cpu::Machine machine = codegen::cpu::host_machine();
  if (options.cpu.empty()) return machine;
  return codegen::cpu::machine_named(options.cpu);
}

Status runs_here(const codegen::cpu::Machine& machine) {
  const codegen::cpu::Machine host = codegen::cpu::host_machine();
  if (machine.vector_bytes <= host.vector_bytes) return Ok{};
  return fail(ErrorCode::missing, "code for '{}' has {}-bit vectors, this machine has {}-bit ones",
              machine.cpu, 8 * machine.vector_bytes, 8 * host.vector_bytes);
}

namespace {

/// Passes, plan and lowering; for a GPU with `objects` code, too.
Result<Compiled> lower_graph(prim::Graph graph, const CompileOptions& options,
                             const Platform& platform, Dumper& dumper, ThreadPool& pool,
                             std::vector<std::string>* objects = nullptr, double us_per_byte = 0) {
  Compiled compiled;
  compiled.precision = options.precision;
  Stopwatch watch(compiled.times);
  graph = HEDDLE_TRY(run_graph_passes(std::move(graph), options, platform, dumper));
  if (options.precision != DType::f32)
    graph = HEDDLE_TRY(
        run_graph_passes(prim::with_storage(graph, options.precision), options, platform, dumper));
  compiled.graph = plan::with_copied_outputs(graph, platform.cuda);
  graph = {};  // constants that the passes have replaced are not kept
  watch.lap("passes");
  compiled.graph = HEDDLE_TRY(with_riding_moments(std::move(compiled.graph), options, platform,
                                                  pool, &compiled.moments_us));
  watch.lap("plan");
  plan::Options planning = HEDDLE_TRY(plan_options(compiled.graph, options, platform));
  planning.pool = &pool;
  planning.us_per_byte = us_per_byte;
  const bool measured = HEDDLE_TRY(budget_seconds(options.budget)) > 0 || !options.locked.empty();
  if (measured && !platform.cuda) HEDDLE_TRY(runs_here(platform.cpu));
  const Orchestrate orchestrate = [&](const plan::Options& with) -> Result<plan::Plan> {
    const Stopwatch::Pause planning_time(watch, "plan");
    if (!measured) return plan::orchestrate(compiled.graph, with);
    const int timed = std::exchange(compiled.measured, {}).timed;
    auto plan = plan_measured(compiled.graph, with, options, platform, pool, &compiled.measured);
    compiled.measured.timed += timed;
    return plan;
  };
  Chosen chosen;
  if (platform.cuda && objects) {
    Built built = HEDDLE_TRY(build_kernels(
        compiled.graph, planning, platform, orchestrate, [&](std::vector<CompiledKernel>& kernels) {
          return generate_cubins(kernels, platform, options, pool);
        }));
    if (platform.persistent) {
      std::vector<KernelCode*> codes;
      for (CompiledKernel& kernel : built.chosen.kernels) codes.push_back(&kernel.code);
      HEDDLE_TRY(leave_spilling_ring(codes, built.objects, platform, options.options));
    }
    chosen = std::move(built.chosen);
    *objects = std::move(built.objects);
  } else {
    const auto done_with = [&](prim::NodeId id) { compiled.graph.drop_constant(id); };
    chosen = HEDDLE_TRY(choose_kernels(compiled.graph, planning, platform, orchestrate, {},
                                       options.keep_constants ? DoneWith() : done_with));
  }
  compiled.plan = std::move(chosen.plan);
  compiled.kernels = std::move(chosen.kernels);
  compiled.joins = std::move(chosen.joins);
  // An output that is not computed is given by its equivalent.
  for (prim::GraphOutput& output : compiled.graph.outputs) {
    const auto other =
        std::ranges::find(compiled.plan.substitutes, output.node, &plan::Substitute::wanted);
    if (other != compiled.plan.substitutes.end()) output.node = other->instead;
  }
  dumper.write("plan", "plan", plan::print(compiled.graph, compiled.plan));
  for (const CompiledKernel& kernel : compiled.kernels)
    dumper.write("kernel", kernel.lowered.kernel.name, kernel::to_string(kernel.lowered.kernel));
  watch.lap(platform.cuda && objects ? "lower, code" : "lower");
  return compiled;
}

}  // namespace

Result<Compiled> plan_only(prim::Graph graph, const CompileOptions& options) {
  const Platform platform = HEDDLE_TRY(platform_for(options));
  Dumper dumper(options.options);
  ThreadPool pool(platform.threads);
  return lower_graph(std::move(graph), options, platform, dumper, pool);
}

namespace {

/// Kernels and their code, not yet a program.
struct Draft {
  Compiled compiled;
  std::vector<std::string> objects;
};

/// Of a plan in which a byte that is written costs so much.
Result<Draft> draft_of(prim::Graph graph, const CompileOptions& options, const Platform& platform,
                       double us_per_byte) {
  Dumper dumper(options.options);
  ThreadPool pool(platform.threads);
  Draft draft;
  draft.compiled = HEDDLE_TRY(
      lower_graph(std::move(graph), options, platform, dumper, pool, &draft.objects, us_per_byte));
  Compiled& compiled = draft.compiled;
  Stopwatch watch(compiled.times);
  if (!platform.cuda)
    draft.objects = HEDDLE_TRY(generate(compiled.kernels, platform.cpu, options, pool));
  if (dumper.wants("source"))
    for (const CompiledKernel& kernel : compiled.kernels)
      dumper.write("source", kernel.lowered.kernel.name + (platform.cuda ? ".cu" : ".ll"),
                   HEDDLE_TRY(source_of(kernel, platform)));
  watch.lap("code");
  return draft;
}

/// Prices of a byte that is written, in microseconds: from none to much more than any computing.
constexpr double kPrices[] = {0, 5e-5, 5e-4, 5e-3, 5e-2};

/// The cheapest draft that needs no more memory than the limit: plans in which bytes have a price,
/// then kernels that run again; without layers band by band if need be, whose bands each thread
/// has.
Result<Draft> draft_within(const prim::Graph& graph, const CompileOptions& options,
                           const Platform& given, Layout layout) {
  std::optional<Draft> best;
  Platform platform = given;
  platform.joins = false;  // a kernel that runs again makes all of what it stores in a block
  const auto fits = [&](const Compiled& x) { return x.memory.bytes <= options.memory_limit; };
  for (std::size_t i = 0; i < 2 * std::size(kPrices); ++i) {
    if (i == std::size(kPrices)) {
      if (platform.cuda || fits(best->compiled)) break;
      platform.bands = false;
    }
    const double price = kPrices[i % std::size(kPrices)];
    Draft draft = HEDDLE_TRY(draft_of(graph, options, platform, price));
    Compiled& c = draft.compiled;
    const auto needs = [&] {
      return memory_of(assemble(c.graph, c.kernels, {}, platform.threads, platform.name(), layout),
                       platform.threads);
    };
    c.memory = needs();
    const std::size_t kernels = c.kernels.size();
    const bool alone = fits(c);
    // The stages of a persistent kernel are its code, so none can run twice.
    if (!alone && !platform.persistent) {
      run_again(c.graph, c.plan, c.kernels,
                options.memory_limit - (c.memory.bytes - c.memory.arena));
      c.memory = needs();
    }
    c.memory.us_per_byte = price;
    c.memory.again = static_cast<int>(c.kernels.size() - kernels);
    const auto rank = [&](const Compiled& x) {
      return std::pair(!fits(x), fits(x) ? x.plan.cost_us : static_cast<double>(x.memory.bytes));
    };
    if (!best || rank(c) < rank(best->compiled)) best = std::move(draft);
    if (alone) break;
  }
  const MemoryReport& m = best->compiled.memory;
  if (fits(best->compiled)) return *std::move(best);
  const auto mb = [](std::int64_t bytes) { return 1e-6 * static_cast<double>(bytes); };
  return fail(
      ErrorCode::out_of_memory,
      "--memory-limit: no program was found that needs less than {:.1f} MB ({:.1f} of "
      "constants, {:.1f} of inputs and outputs, {:.1f} of arena, {:.1f} of scratch); found a "
      "limit of {:g}",
      mb(m.bytes), mb(m.constants), mb(m.ports), mb(m.arena), mb(m.scratch),
      mb(options.memory_limit));
}

/// What compiling has taken so far.
double seconds_of(const Compiled& compiled) {
  double seconds = 0;
  for (const PhaseTime& time : compiled.times) seconds += time.seconds;
  return seconds;
}

Result<Compiled> compile_for(prim::Graph graph, const CompileOptions& options,
                             const ModeRequest& mode, const Platform& platform) {
  const bool monolith =
      platform.cuda ? platform.persistent.has_value() : mode.kind != ModeRequest::Kind::kernels;
  const Layout layout = !monolith                  ? Layout::kernels
                        : options.memory_limit > 0 ? Layout::tight
                                                   : Layout::monolith;
  Draft draft =
      HEDDLE_TRY(options.memory_limit > 0 ? draft_within(graph, options, platform, layout)
                                          : draft_of(std::move(graph), options, platform, 0));
  Compiled& compiled = draft.compiled;
  Stopwatch watch(compiled.times);
  const auto assembled = [&](Layout with) {
    runtime::Program program = assemble(compiled.graph, compiled.kernels, draft.objects,
                                        platform.threads, platform.name(), with);
    program.denormals = platform.strict;
    return program;
  };
  runtime::Program program = assembled(layout);
  watch.lap("assemble");
  compiled.mode = HEDDLE_TRY(settle_mode(program, mode, platform, options, seconds_of(compiled)));
  // One kernel after another needs no memory for what could run side by side.
  if (layout == Layout::monolith && !platform.cuda && !program.monolith)
    program = assembled(Layout::kernels);
  MemoryReport memory = memory_of(program, platform.threads);
  memory.limit = options.memory_limit;
  memory.us_per_byte = compiled.memory.us_per_byte;
  memory.again = compiled.memory.again;
  compiled.memory = memory;
  watch.lap("mode");
  program.manifest = report_of(compiled, platform).dump();
  compiled.program = std::make_shared<runtime::Program>(std::move(program));
  return std::move(compiled);
}

/// The report goes with the program.
void set_mode(Compiled& compiled, const ModeReport& mode, const Platform& platform) {
  compiled.mode = mode;
  auto program = std::make_shared<runtime::Program>(*compiled.program);
  program->manifest = report_of(compiled, platform).dump();
  compiled.program = std::move(program);
}

/// The setting of resources under which the stages alone take least; without one, what there is.
Compiled with_tuned_groups(Compiled compiled, const prim::Graph& graph,
                           const CompileOptions& options, const ModeRequest& mode,
                           const Platform& platform, double budget) {
  const auto untuned = [&](const Error& error) {
    log(LogLevel::warning, "--mode {}: groups are not tuned: {}", options.mode, error.message);
    ModeReport report = compiled.mode;
    report.reason += "; groups not tuned: " + error.message;
    set_mode(compiled, report, platform);
    return std::move(compiled);
  };
  const auto tuned = tune_monolith(compiled, platform, options, budget);
  if (!tuned) return untuned(tuned.error());
  Platform own = platform;
  own.persistent = tuned->setting;
  ModeRequest with = mode;
  with.reason = to_string(*tuned);
  auto again = compile_for(graph, options, with, own);
  return again ? *std::move(again) : untuned(again.error());
}

/// The layout that is fastest on this GPU; where none can be timed, what there is.
Compiled with_fastest_layout(Compiled compiled, const CompileOptions& options,
                             const ModeRequest& mode, const Platform& platform) {
  runtime::Program program = *compiled.program;
  auto report = measure_modes(program, mode, platform, options, seconds_of(compiled));
  if (!report) {
    log(LogLevel::warning, "--mode {}: layouts are not timed: {}", options.mode,
        report.error().message);
    const std::string why = "; layouts not timed: " + report.error().message;
    report = compiled.mode;
    report->reason += why;
  } else {
    report->reason += "; " + compiled.mode.reason;
    compiled.program = std::make_shared<runtime::Program>(std::move(program));
  }
  set_mode(compiled, *report, platform);
  return compiled;
}

Result<Compiled> compile_persistent_for(const prim::Graph& graph, const CompileOptions& options,
                                        const ModeRequest& mode, const Platform& platform) {
  const double budget = HEDDLE_TRY(budget_seconds(options.budget));
  const bool timed = budget > 0 && platform.found;
  ModeRequest first = mode;
  if (mode.tuned && !timed) first.reason = "not tuned: stages are timed on a GPU, with a budget";
  Compiled compiled = HEDDLE_TRY(compile_for(graph, options, first, platform));
  if (!timed) return compiled;
  compiled = with_tuned_groups(std::move(compiled), graph, options, mode, platform, budget);
  if (mode.layout) return compiled;
  return with_fastest_layout(std::move(compiled), options, mode, platform);
}

/// On a GPU each mode has code of its own: both are made and timed, where the budget allows it.
Result<Compiled> faster_of_both(const prim::Graph& graph, const CompileOptions& options,
                                const Platform& platform) {
  const auto kernels_for = [&](std::string why) {
    return compile_for(graph, options,
                       {ModeRequest::Kind::kernels, {}, false, "auto: " + std::move(why)},
                       platform);
  };
  Platform persistent = platform;
  persistent.persistent.emplace();
  auto whole = compile_persistent_for(graph, options, {ModeRequest::Kind::monolith}, persistent);
  if (!whole) return kernels_for("no monolith: " + whole.error().message);
  Compiled apart = HEDDLE_TRY(kernels_for("not measured"));
  const auto faster = faster_program(*apart.program, *whole->program, options);
  if (!faster) {
    apart.mode.reason = "auto: not measured: " + faster.error().message;
    set_mode(apart, apart.mode, platform);
    return apart;
  }
  const bool monolith = faster->chosen != "kernels";
  Compiled& chosen = monolith ? *whole : apart;
  ModeReport report = *faster;
  for (const auto& [layout, us] : whole->mode.measured)  // in turns among themselves
    if (layout != whole->mode.chosen) report.measured.emplace_back(layout, us);
  report.tuning = whole->mode.reason + "; " + whole->mode.tuning;
  set_mode(chosen, report, monolith ? persistent : platform);
  return std::move(chosen);
}

}  // namespace

Result<Compiled> compile(prim::Graph graph, const CompileOptions& options) {
  const ModeRequest mode = HEDDLE_TRY(parse_mode(options.mode));
  Platform platform = HEDDLE_TRY(platform_for(options));
  const bool timed = platform.found && HEDDLE_TRY(budget_seconds(options.budget)) > 0;
  if (timed && mode.kind == ModeRequest::Kind::automatic)
    return faster_of_both(graph, options, platform);
  if (!platform.persistent) return compile_for(std::move(graph), options, mode, platform);
  Result<Compiled> compiled = compile_persistent_for(graph, options, mode, platform);
  if (compiled || compiled.error().code != ErrorCode::unsupported) return compiled;
  // What cannot be a stage keeps the plan in several kernels.
  platform.persistent.reset();
  log(LogLevel::warning, "--mode {}: {}; several kernels instead", options.mode,
      compiled.error().message);
  return compile_for(
      std::move(graph), options,
      {ModeRequest::Kind::kernels, {}, false, "no monolith: " + compiled.error().message},
      platform);
}

}  // namespace heddle::driver
