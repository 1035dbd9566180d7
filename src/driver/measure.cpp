#include "driver/measure.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <unordered_map>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "codegen/cuda/tree_text.h"
#include "driver/cuda_code.h"
#include "driver/lower_plan.h"
#include "plan/calibrate.h"
#include "plan/reuse.h"
#include "support/clock.h"
#include "support/log.h"
#include "support/median.h"

namespace heddle::driver {
namespace {

constexpr int kFewestRuns = 5, kMostRuns = 200;
constexpr double kSecondsPerKernel = 0.02;
constexpr std::size_t kSchedules = 6;  ///< of one contraction, at most
/// Share of the own choice's time that another schedule has to beat: less is chance.
constexpr double kClearly = 0.97;
/// A schedule that is slower by this factor after its fewest runs is timed no longer.
constexpr double kHopeless = 1.2;
constexpr std::size_t kPreparedAtOnce = 8;  ///< kernels, for each thread that compiles

}  // namespace

Tensor plain_values(const TensorType& type, std::mt19937_64& random) {
  Tensor tensor(type);
  std::normal_distribution<double> normal;
  if (is_float(type.dtype))
    for (std::int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, normal(random));
  return tensor;
}

namespace {

void push_out_of_caches([[maybe_unused]] const std::vector<Tensor>& constants) {
#if defined(__x86_64__)
  for (const Tensor& t : constants)
    for (std::int64_t i = 0; i < t.bytes(); i += 64) _mm_clflush(t.data() + i);
  _mm_mfence();
#endif
}

/// Seconds of one run: wall time, on a GPU by events around the kernels.
Result<double> seconds_of(runtime::Session& session, const std::vector<Tensor>& inputs,
                          std::vector<Tensor>& outputs) {
  if (session.program().device == "cpu") {
    const double start = now();
    HEDDLE_TRY(session.run_into(inputs, outputs));
    return now() - start;
  }
  double sum = 0;
  for (const runtime::LaunchTime& t : HEDDLE_TRY(session.profile(inputs))) sum += t.seconds;
  return sum;
}

/// Median microseconds of a session's run, and of how many. Few, if it is far above `best_us`.
/// `cold`: constants to be found in memory.
Result<std::pair<double, int>> median_us(runtime::Session& session, const std::vector<Tensor>& cold,
                                         double best_us) {
  std::mt19937_64 random(1);
  std::vector<Tensor> inputs, outputs;
  for (const runtime::Port& port : session.program().inputs)
    inputs.push_back(plain_values(port.type, random));
  outputs = HEDDLE_TRY(session.run(inputs));
  std::vector<double> times;
  const double begin = now();
  while (static_cast<int>(times.size()) < kFewestRuns ||
         (now() - begin < kSecondsPerKernel && static_cast<int>(times.size()) < kMostRuns)) {
    push_out_of_caches(cold);
    times.push_back(HEDDLE_TRY(seconds_of(session, inputs, outputs)));
    if (static_cast<int>(times.size()) == kFewestRuns &&
        *std::ranges::min_element(times) * 1e6 > kHopeless * best_us)
      break;
  }
  return std::pair{median(times) * 1e6, static_cast<int>(times.size())};
}

/// Code of kernels that were compiled together, by their text.
struct Prepared {
  KernelCode code;
  std::string object;
};
Hash text_hash(const kernel::Kernel& nameless) { return hash_bytes(kernel::to_string(nameless)); }

struct Timer {
  const CompileOptions& options;
  const Platform& platform;
  ThreadPool& pool;
  std::function<lower::Layout(prim::NodeId)> layout_of;
  /// Shared with the caller's pool object: sessions want to own theirs.
  std::shared_ptr<ThreadPool> session_pool{&pool, [](ThreadPool*) {}};
  std::unordered_map<Hash, Prepared> prepared = {};  ///< on a CPU

  Result<std::vector<std::string>> code_for(CompiledKernel& kernel) {
    if (platform.persistent) {
      kernel.code = HEDDLE_TRY(cuda_text(kernel.lowered.kernel, platform));
      std::vector<KernelCode*> codes{&kernel.code};
      return compile_persistent(codes, platform, options.options);
    }
    if (platform.cuda) {
      std::vector<KernelCode> codes = {HEDDLE_TRY(cuda_text(kernel.lowered.kernel, platform))};
      auto objects = HEDDLE_TRY(compile_cuda(codes, platform, options.options, pool, {}));
      kernel.code = std::move(codes[0]);
      add_units({&kernel, 1}, objects, platform, options);
      if (kernel.lowered.tree && !kernel.code.unit) return fail("no unit of its product");
      return objects;
    }
    const kernel::Kernel nameless = without_names(kernel.lowered.kernel);
    if (const auto known = prepared.find(text_hash(nameless)); known != prepared.end()) {
      kernel.code = known->second.code;
      return std::vector<std::string>{known->second.object};
    }
    Code code =
        HEDDLE_TRY(generate_code({nameless}, platform.cpu, options.options.cache_dir, pool, {}));
    kernel.code = to_code(code.kernels[0]);
    return std::move(code.objects);
  }

  Result<plan::Timing> time(const prim::Graph& graph, const lower::Request& request, bool near,
                            double best_us = std::numeric_limits<double>::infinity()) {
    CompiledKernel kernel;
    kernel.planned.cluster = request.cluster;
    kernel.lowered = HEDDLE_TRY(lower::lower(request));
    for (const lower::Argument& a : kernel.lowered.arguments)
      kernel.input_layouts.push_back(
          a.kind == lower::Argument::Kind::value ? request.layout_of(a.node) : lower::Layout{});
    std::vector<std::string> objects = HEDDLE_TRY(code_for(kernel));
    SingleKernel single = single_kernel(graph, kernel, std::move(objects), platform.name());
    single.program.threads = pool.threads();
    const auto program = std::make_shared<runtime::Program>(std::move(single.program));
    const auto executor = HEDDLE_TRY(executor_for(*program, options, session_pool));
    const auto session = HEDDLE_TRY(executor->session(program));
    const auto [us, runs] =
        HEDDLE_TRY(median_us(*session, near ? std::vector<Tensor>() : program->constants, best_us));
    return plan::Timing{us, request.tuning, runs};
  }

  lower::Request request_for(const prim::Graph& graph, const lower::Cluster& cluster) const {
    lower::Request request;
    request.graph = &graph;
    request.cluster = cluster;
    request.target = platform.target();
    request.layout_of = layout_of;
    request.required_layout = [](prim::NodeId) { return std::optional<lower::Layout>(); };
    return request;
  }

  /// Schedules worth trying: those of others, and the best guesses of our own.
  static std::vector<lower::Tuning> schedules(const lower::Request& request) {
    std::vector<lower::Tuning> space = lower::tuning_space(request);
    const auto by_others = [](const lower::Tuning& t) {
      return !t.empty() && (t.back().first == "library" || t.back().first == "cutlass");
    };
    const auto own = std::find_if_not(space.begin(), space.end(), by_others);
    const auto most = static_cast<std::size_t>(own - space.begin()) + kSchedules;
    if (space.size() > most) space.resize(most);
    return space;
  }

  /// Compiles all schedules of these at once, on all threads.
  void prepare_cpu(const prim::Graph& graph, const std::vector<lower::Cluster>& clusters) {
    prepared.clear();
    std::vector<kernel::Kernel> kernels;
    std::set<Hash> seen;
    for (const lower::Cluster& cluster : clusters) {
      lower::Request request = request_for(graph, cluster);
      request.contents = false;
      std::vector<lower::Tuning> all = schedules(request);
      all.insert(all.begin(), lower::Tuning());
      for (const lower::Tuning& tuning : all) {
        request.tuning = tuning;
        const auto lowered = lower::lower(request);
        if (!lowered) continue;  // time() tells why
        kernel::Kernel nameless = without_names(lowered->kernel);
        if (seen.insert(text_hash(nameless)).second) kernels.push_back(std::move(nameless));
      }
    }
    constexpr std::size_t kAlone = 1;  // in its object: each is linked by itself
    auto code = generate_code(kernels, platform.cpu, options.options.cache_dir, pool, {}, kAlone);
    if (!code) return;
    for (std::size_t i = 0; i < kernels.size(); ++i)
      prepared[text_hash(kernels[i])] = {to_code(code->kernels[i]), std::move(code->objects[i])};
  }

  /// Compiles what will be timed, at once; on a GPU what many kernels share, units of products.
  void prepare(const prim::Graph& graph, const std::vector<lower::Cluster>& clusters) {
    if (!platform.cuda) return prepare_cpu(graph, clusters);
    if (!platform.units) return;
    std::vector<codegen::cuda::UnitEntry> entries;
    for (const lower::Cluster& cluster : clusters) {
      lower::Request request = request_for(graph, cluster);
      for (const lower::Tuning& tuning : schedules(request)) {
        if (tuning.empty() || tuning.back().first != "cutlass") continue;
        request.tuning = tuning;
        const auto lowered = lower::lower(request);
        if (lowered && lowered->tree) entries.push_back(codegen::cuda::tree_text(*lowered->tree));
      }
    }
    compile_units(entries, platform, options);
  }

  /// The fastest of the schedules worth trying.
  Result<plan::Timing> operator()(const prim::Graph& graph, const lower::Cluster& cluster,
                                  bool near) {
    lower::Request request = request_for(graph, cluster);
    const plan::Timing own = HEDDLE_TRY(time(graph, request, near));
    plan::Timing best = own;
    for (const lower::Tuning& tuning : schedules(request)) {
      request.tuning = tuning;
      const Result<plan::Timing> other = time(graph, request, near, best.us);
      if (other && other->us < std::min(best.us, kClearly * own.us)) best = *other;
    }
    return best;
  }
};

}  // namespace

Result<double> budget_seconds(const std::string& budget) {
  if (budget == "none") return 0.0;
  if (budget == "full") return std::numeric_limits<double>::infinity();
  double seconds = 0;
  const char* end = budget.data() + budget.size();
  const auto [rest, error] = std::from_chars(budget.data(), end, seconds);
  if (error != std::errc() || rest != end || !(seconds > 0))
    return fail(ErrorCode::usage, "--budget: found '{}', want none, full, or seconds above 0",
                budget);
  return seconds;
}

Result<std::unique_ptr<plan::TuningDb>> open_tuning_db(const std::string& cache_dir) {
  if (cache_dir.empty()) return plan::TuningDb::open(":memory:");
  std::error_code error;
  std::filesystem::create_directories(cache_dir, error);
  const std::string path = cache_dir + "/tuning.db";
  if (plan::TuningDb::is_damaged(path)) {
    std::filesystem::rename(path, path + ".damaged", error);
    if (error) return fail("tuning database '{}': it is damaged: delete it", path);
    for (const char* part : {"-wal", "-shm"}) std::filesystem::remove(path + part, error);
    log(LogLevel::warning, "{}: damaged, kept as {}.damaged; measurements are made again", path,
        path);
  }
  return plan::TuningDb::open(path);
}

namespace {

/// The machine's name among rates; those under the name alone are of small pages.
std::string name_of_rates(const Platform& platform) {
  return platform.machine_name() + ", huge pages";
}

/// What was measured, with what the processor is known to have.
Result<std::optional<plan::MachineModel>> known_machine(const plan::TuningDb& db,
                                                        const Platform& platform) {
  auto known = HEDDLE_TRY(db.machine(name_of_rates(platform)));
  if (known) platform.add_instructions(*known);
  return known;
}

}  // namespace

Result<plan::MachineModel> calibrated_machine(plan::TuningDb& db, ThreadPool& pool,
                                              const Platform& platform) {
  if (platform.cuda) return platform.model();
  if (const auto known = HEDDLE_TRY(known_machine(db, platform))) return *known;
  plan::MachineModel model = plan::calibrate(pool, platform.cpu.vector_bytes);
  HEDDLE_TRY(db.store_machine(name_of_rates(platform), model));
  platform.add_instructions(model);
  return model;
}

namespace {

/// Plans with the measurements of `db`, timing what it lacks for `budget` seconds.
Result<plan::Plan> plan_with(plan::TuningDb& db, double budget, const prim::Graph& graph,
                             const plan::Options& planning, const CompileOptions& options,
                             const Platform& platform, ThreadPool& pool,
                             plan::MeasureReport& report) {
  if (budget > 0 && platform.cuda && !platform.found)
    return fail(ErrorCode::missing, "--budget {}: {} is not here to measure on, want none",
                options.budget, platform.gpu.name);
  plan::MeasureOptions measure;
  measure.machine = platform.machine_name();
  // What was measured with units is good where they can be made again.
  if (platform.tools && !platform.units) measure.other_machine = platform.machine_name(true);
  measure.build = build_id();
  measure.budget_s = budget;
  measure.db = &db;
  // The plan without measurements shows which values are stored channels-last; others follow it.
  // It does not depend on how this machine was calibrated: what is measured is found again.
  plan::Options unmeasured = planning;
  unmeasured.machine = platform.model();
  const plan::Plan first = HEDDLE_TRY(plan::orchestrate(graph, unmeasured));
  measure.layout_of = likely_layouts(graph, HEDDLE_TRY(layouts_of(graph, first, platform)));
  if (!platform.cuda)
    for (const plan::Kernel& kernel : first.kernels) measure.first.push_back(kernel.cluster);
  if (!platform.cuda)
    measure.prepared_at_once = kPreparedAtOnce * static_cast<std::size_t>(pool.threads());
  Timer timer{options, platform, pool, measure.layout_of};
  measure.time = [&](const prim::Graph& g, const lower::Cluster& c, bool near) {
    return timer(g, c, near);
  };
  measure.prepare = [&](const prim::Graph& g, const std::vector<lower::Cluster>& all) {
    timer.prepare(g, all);
  };
  measure.progress = [&](int done, int waiting, double plan_us) {
    if (options.progress)
      options.progress(fmt::format("measuring kernels (plan {:.2f} ms)", plan_us * 1e-3),
                       static_cast<double>(done) / (done + waiting));
  };
  return plan::orchestrate_measured(graph, planning, measure, &report);
}

/// The machine's model in a file of measurements; those of GPUs are known without measuring.
Result<plan::MachineModel> locked_machine(const plan::TuningDb& db, const Platform& platform,
                                          const std::string& path) {
  if (platform.cuda) return platform.model();
  if (const auto known = HEDDLE_TRY(known_machine(db, platform))) return *known;
  return fail("--locked: {}: found nothing measured on this machine, want '{}'", path,
              name_of_rates(platform));
}

/// The plan that a file of measurements decides, whenever it is read again.
Result<plan::Plan> plan_locked(const prim::Graph& graph, plan::Options planning,
                               const CompileOptions& options, const Platform& platform,
                               ThreadPool& pool, plan::MeasureReport& report) {
  const double budget = HEDDLE_TRY(budget_seconds(options.budget));
  const bool there = std::filesystem::exists(options.locked);
  if (!there && budget <= 0)
    return fail(ErrorCode::usage,
                "--locked: found no file '{}' and --budget none, want one of both", options.locked);
  const auto db = HEDDLE_TRY(plan::TuningDb::open(options.locked));
  if (!there) {
    planning.machine = HEDDLE_TRY(calibrated_machine(*db, pool, platform));
    HEDDLE_TRY(plan_with(*db, budget, graph, planning, options, platform, pool, report));
    report = {};
  }
  planning.machine = HEDDLE_TRY(locked_machine(*db, platform, options.locked));
  plan::Plan plan = HEDDLE_TRY(plan_with(*db, 0, graph, planning, options, platform, pool, report));
  if (report.from_db == 0)
    return fail("--locked: {}: found no kernel of this model, measured by this build ({})",
                options.locked, build_id());
  return plan;
}

}  // namespace

Result<plan::Plan> plan_measured(const prim::Graph& graph, plan::Options planning,
                                 const CompileOptions& options, const Platform& platform,
                                 ThreadPool& pool, plan::MeasureReport* report) {
  plan::MeasureReport own;
  plan::MeasureReport& r = report != nullptr ? *report : own;
  if (!options.locked.empty())
    return plan_locked(graph, std::move(planning), options, platform, pool, r);
  const auto db = HEDDLE_TRY(open_tuning_db(options.options.cache_dir));
  planning.machine = HEDDLE_TRY(calibrated_machine(*db, pool, platform));
  log(LogLevel::info, "machine: {}", plan::to_string(planning.machine));
  plan::Plan plan = HEDDLE_TRY(plan_with(*db, HEDDLE_TRY(budget_seconds(options.budget)), graph,
                                         planning, options, platform, pool, r));
  log(LogLevel::info, "{} kernels timed, {} known, {} failed in {} rounds, {:.1f} s{}", r.timed,
      r.from_db, r.failed, r.rounds, r.seconds, r.budget_spent ? " (budget spent)" : "");
  for (const std::string& failure : r.failures) log(LogLevel::info, "not timed: {}", failure);
  return plan;
}

namespace {

Result<plan::Schedules> schedules_in(const std::string& path, const Platform& platform) {
  if (platform.cuda || platform.strict)
    return fail(ErrorCode::usage, "--save: want --device cpu, --accuracy standard");
  namespace fs = std::filesystem;
  plan::Schedules fresh{platform.cpu.cpu, lower::kLoweringVersion, {}};
  const fs::path folder = fs::absolute(path).parent_path();
  if (!fs::is_directory(folder))
    return fail("--save: {}: there is no such folder", folder.string());
  if (!fs::exists(path)) return fresh;
  std::ifstream file(path);
  if (!file || !fs::is_regular_file(path))
    return fail(ErrorCode::usage, "--save: {}: cannot read", path);
  plan::Schedules found = HEDDLE_TRY(
      plan::parse_schedules(std::string(std::istreambuf_iterator<char>(file), {}), path));
  if (const std::string why = plan::staleness(found, platform.cpu.cpu); !why.empty())
    return fail(ErrorCode::usage, "--save: {}: {}; want another file", path, why);
  return found;
}

}  // namespace

Status may_save_schedules(const CompileOptions& options, const std::string& path) {
  HEDDLE_TRY(schedules_in(path, HEDDLE_TRY(platform_for(options))));
  return Ok{};
}

Result<int> save_schedules(const Compiled& unmeasured, const CompileOptions& options,
                           const std::string& path) {
  const Platform platform = HEDDLE_TRY(platform_for(options));
  plan::Schedules schedules = HEDDLE_TRY(schedules_in(path, platform));
  const auto db = HEDDLE_TRY(open_tuning_db(options.options.cache_dir));
  std::set<Hash> here;
  const std::vector<double> between = plan::constants_between(unmeasured.graph);
  // As when they were measured (plan_with).
  const std::int64_t l2_bytes =
      HEDDLE_TRY(known_machine(*db, platform)).value_or(platform.model()).l2_bytes;
  for (const CompiledKernel& kernel : unmeasured.kernels) {
    const bool near =
        plan::finds_constants_near(unmeasured.graph, kernel.planned.cluster, between, l2_bytes);
    const auto found = HEDDLE_TRY(db->lookup(
        {plan::measured_structure(kernel.structure, near), platform.machine_name(), build_id()}));
    const auto* entry = std::get_if<plan::TuningEntry>(&found);
    if (entry == nullptr) continue;
    schedules.rows.erase(kernel.structure);
    if (entry->tuning.empty()) continue;
    schedules.rows[kernel.structure] = {entry->tuning, entry->us, entry->label};
    here.insert(kernel.structure);
  }
  const std::string part = path + ".part";  // an interrupted save leaves what was there
  std::ofstream file(part);
  file << plan::print(schedules);
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(part, path, error);
  if (!file || error) return fail("--save: {}: cannot write", path);
  return static_cast<int>(here.size());
}

}  // namespace heddle::driver
