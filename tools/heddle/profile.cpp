#include <algorithm>
#include <fstream>
#include <limits>
#include <map>

#include "codegen/cpu/target.h"
#include "common.h"
#include "driver/measure.h"
#include "driver/report.h"
#include "plan/calibrate.h"
#include "step.h"
#include "support/clock.h"

namespace heddle::tool {
namespace {

using nlohmann::json;

constexpr double kTarget = 0.85;  ///< share of its roofline that a kernel should attain

struct ProfileFlags : ModelFlags {
  int iterations = 20;
  std::string trace;
  bool roofline = false;
};

/// "thread 1"; a block's multiprocessor comes first: several of its blocks may run at once.
std::string row_name(const runtime::Program& program, const runtime::ItemTime& t) {
  if (program.device == "cpu") return fmt::format("thread {}", t.worker);
  if (t.multiprocessor < 0) return "kernels";
  return fmt::format("multiprocessor {}, block {}", t.multiprocessor, t.worker);
}

/// Names of the rows, and their order: blocks of one multiprocessor lie together. A thread has one
/// though it found nothing left to do.
void add_rows(json& events, const runtime::Program& program,
              const std::vector<runtime::ItemTime>& items) {
  std::map<std::pair<int, int>, runtime::ItemTime> rows;
  for (const runtime::ItemTime& t : items) rows.emplace(std::pair{t.multiprocessor, t.worker}, t);
  for (int i = 0; program.device == "cpu" && i < program.threads; ++i)
    rows.emplace(std::pair{-1, i}, runtime::ItemTime{.worker = i});
  int position = 0;
  for (const auto& [key, t] : rows) {
    const auto event = [&](const char* name, json args) {
      events.push_back(
          {{"name", name}, {"ph", "M"}, {"pid", 0}, {"tid", t.worker}, {"args", std::move(args)}});
    };
    event("thread_name", {{"name", row_name(program, t)}});
    event("thread_sort_index", {{"sort_index", position++}});
  }
}

/// One run as it is: a row for each worker, with what it ran, by the numbers and names that
/// `explain` has, and how long it waited before.
json trace_of(const std::string& model, const runtime::Program& program, const json& report,
              const std::vector<runtime::ItemTime>& items) {
  json events = {{{"name", "process_name"}, {"ph", "M"}, {"pid", 0}, {"args", {{"name", model}}}}};
  const auto event = [&](const runtime::ItemTime& t, const std::string& name, double begin,
                         double end, json args) {
    args["kernel"] = t.launch;
    events.push_back({{"name", name},
                      {"ph", "X"},
                      {"pid", 0},
                      {"tid", t.worker},
                      {"ts", begin * 1e6},
                      {"dur", (end - begin) * 1e6},
                      {"args", std::move(args)}});
  };
  for (const runtime::ItemTime& t : items) {
    const auto launch = static_cast<std::size_t>(t.launch);
    if (t.waited > 0) event(t, "wait", t.begin - t.waited, t.begin, json::object());
    json args = json::object();
    if (report.is_object() && launch < report["kernels"].size())
      args["covers"] = driver::sources_text(report["kernels"][launch], 6);
    if (t.last > t.first)
      args.update({{"phase", t.phase}, {"first task", t.first}, {"tasks", t.last - t.first}});
    event(t, fmt::format("{} {}", launch, program.launches[launch].name), t.begin, t.end,
          std::move(args));
  }
  add_rows(events, program, items);
  return {{"traceEvents", events}, {"displayTimeUnit", "ns"}};
}

double length_of(const std::vector<runtime::ItemTime>& run) {
  double end = 0;
  for (const runtime::ItemTime& t : run) end = std::max(end, t.end);
  return end;
}

/// The shortest of `runs` runs, as a Chrome trace.
Status write_trace(const ProfileFlags& flags, const Model& model, const json& report,
                   const std::vector<Tensor>& inputs) {
  std::vector<runtime::ItemTime> shortest;
  for (int i = 0; i < flags.iterations; ++i) {
    auto run = HEDDLE_TRY(model.session->timeline(inputs));
    if (i == 0 || length_of(run) < length_of(shortest)) shortest = std::move(run);
  }
  std::ofstream file(flags.trace);
  file << trace_of(flags.model, *model.program, report, shortest);
  file.close();
  if (!file) return fail("{}: cannot write", flags.trace);
  return Ok{};
}

using LaunchTimes = std::vector<runtime::LaunchTime>;

/// Each kernel's best time, of whichever run.
Result<LaunchTimes> best_times(const Model& model, const std::vector<Tensor>& inputs, int runs) {
  LaunchTimes best;
  for (int i = 0; i < runs; ++i) {
    LaunchTimes times = HEDDLE_TRY(model.session->profile(inputs));
    if (i == 0) best = times;
    for (std::size_t k = 0; k < times.size(); ++k)
      if (times[k].seconds < best[k].seconds) best[k] = times[k];
  }
  return best;
}

json rows_of(const std::vector<runtime::LaunchTime>& best, const json& report) {
  double total = 0;
  for (const runtime::LaunchTime& time : best) total += time.seconds;
  json kernels = json::array();
  for (std::size_t k = 0; k < best.size(); ++k) {
    json entry = {
        {"name", best[k].name}, {"us", best[k].seconds * 1e6}, {"share", best[k].seconds / total}};
    if (report.is_object() && k < report["kernels"].size()) {
      const json& kernel = report["kernels"][k];
      entry["schedule"] = kernel["schedule"];
      entry["modelled_us"] = kernel["cost"]["us"];
      entry["gflops"] = kernel["cost"]["flops"].get<double>() / best[k].seconds / 1e9;
      entry["gbytes_per_s"] = kernel["cost"]["bytes"].get<double>() / best[k].seconds / 1e9;
      entry["sources"] = kernel["sources"];
    }
    kernels.push_back(entry);
  }
  return kernels;
}

/// The roofline of this machine under a program: what is measured of copies and multiply-adds.
struct Roofline {
  plan::MachineModel machine;
  plan::NarrowPeaks narrow;
  double constant_gbs = 0;  ///< of reading all constants of the program

  /// GFLOP/s of all threads in the widest instructions for products of these types.
  double peak_gflops(const std::string& multiplies) const {
    double peak = machine.peak_gflops;
    if (multiplies == "bf16") peak = std::max(peak, narrow.bf16);
    if (multiplies == "u8 i8" || multiplies == "i8 u8") peak = std::max(peak, narrow.bytes);
    return peak * machine.threads;
  }

  /// GB/s of all threads from the smallest cache that holds `bytes`.
  double gbs(double bytes) const {
    const double t = machine.threads;
    if (bytes <= static_cast<double>(machine.l2_bytes) * t) return machine.l2_gbs * t;
    if (bytes <= static_cast<double>(machine.l3_bytes)) return machine.l3_gbs * t;
    return machine.dram_gbs;
  }
  /// No kernel can be faster: its arithmetic at the peak, its tensors once at copy bandwidth. What
  /// bounds it is the larger of them, or functions of its elements, by an estimate that is no
  /// floor.
  struct Floor {
    double us;
    const char* bound;
    double written_us;  ///< products as written, at the peak
  };
  Floor floor_of(const json& kernel) const {
    const double values = kernel["value_bytes"], constants = kernel["constant_bytes"];
    const std::string multiplies = kernel.value("multiplies", "");
    const double peak = peak_gflops(multiplies) * 1e3;
    // Tile registers multiply f32 as several products of bf16.
    const bool pieces = multiplies == "f32" && kernel["cost"].value("tiles", false);
    const double compute =
        kernel["cost"]["flops"].get<double>() / (pieces ? peak_gflops("bf16") * 1e3 : peak);
    // Two vector instructions a cycle, as multiply-adds of f32, which are counted as two.
    const double functions = kernel.value("function_ops", 0.0) / (peak_gflops("f32") / 2 * 1e3);
    // A gather reads less than its table: never more than the plan says is moved.
    const double moved = kernel["cost"]["bytes"].get<double>();
    const double part = std::min(1.0, moved / std::max(1.0, values + constants));
    const double memory = part * (values / gbs(values) + constants / constant_gbs) * 1e-3;
    const double us = std::max(compute, memory);
    const char* bound = functions > us ? "functions" : compute > memory ? "compute" : "memory";
    return {us, bound, kernel.value("written_flops", 0.0) / peak};
  }
};

Result<Roofline> roofline_of(const ProfileFlags& flags, const runtime::Program& program) {
  const auto platform = HEDDLE_TRY(driver::platform_for(HEDDLE_TRY(compile_options(flags))));
  const auto db = HEDDLE_TRY(driver::open_tuning_db(global_options().cache_dir));
  ThreadPool pool(flags.threads > 0 ? flags.threads : driver::machine_threads());
  const bool tiles = platform.cpu.tiles && codegen::cpu::tiles_permitted();
  Roofline roofline{HEDDLE_TRY(driver::calibrated_machine(*db, pool, platform)),
                    plan::narrow_peaks(platform.cpu.vector_bytes, tiles)};
  double constants = 0;
  for (const Tensor& c : program.constants) constants += static_cast<double>(c.bytes());
  roofline.constant_gbs =
      constants <= static_cast<double>(platform.threads) * roofline.machine.l2_bytes
          ? roofline.gbs(constants)
          : plan::reading_gbs(pool, constants);
  return roofline;
}

void add_floors(json& rows, const json& report, const Roofline& roofline) {
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const Roofline::Floor floor = roofline.floor_of(report["kernels"][k]);
    rows[k]["floor_us"] = floor.us;
    rows[k]["bound"] = floor.bound;
    rows[k]["of_roofline"] = floor.us / rows[k]["us"].get<double>();
    rows[k]["as_written"] = floor.written_us / rows[k]["us"].get<double>();
  }
}

/// The best of whole runs, in microseconds: what lies between kernels counts, too.
Result<double> best_run_us(const Model& model, const std::vector<Tensor>& inputs, int runs) {
  std::vector<Tensor> outputs = HEDDLE_TRY(model.session->run(inputs));
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < runs; ++i) {
    const double start = now();
    HEDDLE_TRY(model.session->run_into(inputs, outputs));
    best = std::min(best, now() - start);
  }
  return 1e6 * best;
}

constexpr std::string_view kBounds[] = {"compute", "memory", "functions"};

/// Of the time of kernels that the same resource bounds, how much goes to those that attain less
/// than the target share of their floor, and of products as they are written, too (Winograd's and
/// Strassen's take fewer multiplications).
json below_target(const json& rows, std::string_view bound) {
  double all = 0, below = 0, below_written = 0;
  int kernels = 0, missing = 0;
  for (const json& row : rows) {
    if (row["bound"] != bound) continue;
    const double us = row["us"];
    const bool misses = row["of_roofline"] < kTarget;
    ++kernels, missing += misses;
    all += us, below += misses ? us : 0;
    below_written += misses && row["as_written"] < kTarget ? us : 0;
  }
  return {{"kernels", kernels},
          {"us", all},
          {"below", missing},
          {"below_us", below},
          {"below_as_written_us", below_written}};
}

double sum_of(const json& rows, const char* key) {
  double sum = 0;
  for (const json& row : rows) sum += row.value(key, 0.0);
  return sum;
}

/// How a whole run goes, which is not how its kernels are timed: a CPU's monolith is taken apart.
std::string mode_of(const runtime::Program& program, const json& report) {
  if (report.is_object() && report.contains("mode"))
    return report["mode"]["chosen"].get<std::string>();
  return program.monolith ? "monolith" : "kernels";
}

void print_rows(const json& result, const ProfileFlags& flags) {
  json rows = result["kernels"];
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a["us"] > b["us"]; });
  fmt::print(
      "{} kernels {}, {:.1f} us (best of {} runs per kernel); whole runs as {}, {:.1f} us (best of "
      "as many)\n",
      rows.size(), result["timed"].get<std::string>(), result["total_us"].get<double>(),
      flags.iterations, result["mode"].get<std::string>(), result["run_us"].get<double>());
  fmt::print("{:>10} {:>6} {:>10} {}{:>8} {:>7}  kernel\n", "us", "%", "model us",
             flags.roofline ? "  floor us     bound   roof % written %  " : "", "GFLOP/s", "GB/s");
  for (const json& k : rows)
    fmt::print(
        "{:10.1f} {:6.1f} {:10.1f} {}{:8.1f} {:7.1f}  {}  {}\n", k["us"].get<double>(),
        100 * k["share"].get<double>(), k.value("modelled_us", 0.0),
        flags.roofline
            ? fmt::format("{:10.1f} {:>9} {:8.1f}  {:8.1f}  ", k["floor_us"].get<double>(),
                          k["bound"].get<std::string>(), 100 * k["of_roofline"].get<double>(),
                          100 * k["as_written"].get<double>())
            : "",
        k.value("gflops", 0.0), k.value("gbytes_per_s", 0.0), k["name"].get<std::string>(),
        k.value("schedule", ""));
}

void print_roofline(const json& result) {
  for (const std::string_view bound : kBounds) {
    const json& b = result[bound];
    fmt::print("bound by {:<9} {} kernels, {:.1f} us; {} of them, {:.1f} us, below {:.0f} % of {}",
               bound, b["kernels"].get<int>(), b["us"].get<double>(), b["below"].get<int>(),
               b["below_us"].get<double>(), 100 * kTarget,
               bound == "functions" ? "what memory and products take" : "it");
    if (bound == "compute")
      fmt::print(" ({:.1f} us of products as written)", b["below_as_written_us"].get<double>());
    fmt::print("\n");
  }
  fmt::print(
      "sum of the floors {:.1f} us: {:.1f} % of the kernels' time, {:.1f} % of the whole run "
      "({:.1f} us)\nmachine: {}\n",
      result["floor_us"].get<double>(), 100 * result["kernels_of_roofline"].get<double>(),
      100 * result["of_roofline"].get<double>(), result["run_us"].get<double>(),
      result["machine"].get<std::string>());
}

Status run(const ProfileFlags& flags) {
  const Model model = HEDDLE_TRY(open_model(flags));
  if (model.chain)
    return unsupported("profile: values decide shapes in '{}', want a model that is one program",
                       flags.model);
  const Inputs inputs = HEDDLE_TRY(make_inputs(*model.program, flags));
  const json report = json::parse(model.program->manifest, nullptr, false);
  const LaunchTimes best = HEDDLE_TRY(best_times(model, inputs.values, flags.iterations));
  if (!flags.trace.empty()) HEDDLE_TRY(write_trace(flags, model, report, inputs.values));
  json rows = rows_of(best, report);
  const bool stamped = model.program->device != "cpu" && model.program->persistent;
  json result = {{"model", flags.model},
                 {"inputs", inputs.from},
                 {"mode", mode_of(*model.program, report)},
                 {"timed", stamped ? "inside the monolith" : "one after another"},
                 {"total_us", sum_of(rows, "us")},
                 {"run_us", HEDDLE_TRY(best_run_us(model, inputs.values, flags.iterations))}};
  if (flags.roofline) {
    if (!report.is_object() || report["kernels"].size() != rows.size())
      return fail("{}: the artefact holds no report, want one for --roofline", flags.model);
    const Roofline roofline = HEDDLE_TRY(roofline_of(flags, *model.program));
    add_floors(rows, report, roofline);
    result["machine"] = plan::to_string(roofline.machine);
    if (roofline.narrow.bf16 + roofline.narrow.bytes > 0)
      result["machine"] = fmt::format("{} bf16_gflops={:.0f} byte_gops={:.0f} constants_gbs={:.1f}",
                                      result["machine"].get<std::string>(), roofline.narrow.bf16,
                                      roofline.narrow.bytes, roofline.constant_gbs);
    result["floor_us"] = sum_of(rows, "floor_us");
    result["kernels_of_roofline"] = sum_of(rows, "floor_us") / sum_of(rows, "us");
    result["of_roofline"] = result["floor_us"].get<double>() / result["run_us"].get<double>();
    for (const std::string_view bound : kBounds) result[bound] = below_target(rows, bound);
  }
  result["kernels"] = rows;
  if (flags.json) {
    fmt::print("{}\n", result.dump(2));
    return Ok{};
  }
  print_rows(result, flags);
  if (flags.roofline) print_roofline(result);
  return Ok{};
}

}  // namespace

Verb add_profile(CLI::App& verb) {
  auto flags = std::make_shared<ProfileFlags>();
  add_model_flags(verb, *flags);
  add_step_flags(verb, *flags);
  verb.add_option("--iterations", flags->iterations, "runs")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  verb.add_option("--trace,--exportProfile", flags->trace,
                  "write the shortest run as a Chrome trace (opens in Perfetto)");
  verb.add_flag("--roofline", flags->roofline,
                "each kernel's floor on this machine (measured peaks), and how close it comes");
  return [flags] { return run(*flags); };
}

}  // namespace heddle::tool
