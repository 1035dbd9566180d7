#include "driver/mode.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "driver/locked_mode.h"
#include "driver/measure.h"
#include "driver/stage_tuning.h"
#include "support/clock.h"
#include "support/log.h"
#include "support/median.h"

namespace heddle::driver {
namespace {

using runtime::StageLayout;

constexpr double kSeconds = 0.3;   ///< for timing candidates in turns, at most
constexpr double kShare = 0.2;     ///< and of what compiling has taken
constexpr double kFewest = 0.05;   ///< seconds of it, for what compiles at once
constexpr double kSettled = 0.02;  ///< until new threads have found processors of their own
constexpr double kLongRun = 0.02;
constexpr int kFewestTurns = 3, kMostTurns = 200;
constexpr int kProfiles = 3;
constexpr int kTimedRuns = 20;      ///< on a GPU, in each turn
constexpr int kWarmRuns = 3;        ///< elsewhere, of short runs: the last one counts
constexpr double kTuneShare = 0.5;  ///< of the same, for tuning stages alone

/// Seconds of each launch, all tasks on one worker: the best of a few runs as a monolith.
Status take_times(runtime::Program& program, runtime::Session& session,
                  const std::vector<Tensor>& inputs, double* run_seconds) {
  std::vector<double> best(program.launches.size(), 1e30);
  for (int i = 0; i < kProfiles; ++i) {
    std::vector<double> seconds(program.launches.size());
    const double start = now();
    const auto run = HEDDLE_TRY(session.timeline(inputs));
    const double taken = now() - start;
    *run_seconds = i == 0 ? taken : std::min(*run_seconds, taken);
    for (const runtime::ItemTime& t : run)
      seconds[static_cast<std::size_t>(t.launch)] += t.end - t.begin;
    for (std::size_t l = 0; l < best.size(); ++l) best[l] = std::min(best[l], seconds[l]);
  }
  for (std::size_t l = 0; l < best.size(); ++l) program.launches[l].seconds = best[l];
  return Ok{};
}

struct Contender {
  std::optional<StageLayout> layout;
  std::vector<double> seconds = {};
  /// On a CPU, others who want its processors only add to what a run takes, to one layout more than
  /// to another: a tenth of the runs is without them sooner than half.
  double typical(bool cuda) const { return quantile(seconds, cuda ? 2 : 10); }
};

bool many_workers(const Platform& platform) { return platform.cuda || platform.threads > 1; }

/// Where kernels are long, few waits are between them: there is little to be chosen.
std::vector<std::optional<StageLayout>> candidates(const ModeRequest& request,
                                                   const Platform& platform, double run_seconds) {
  if (request.layout) return {request.layout};
  if (request.tuned) return {};
  std::vector<std::optional<StageLayout>> out = {StageLayout{}};
  const bool all = run_seconds < kLongRun, many = many_workers(platform);
  StageLayout longest;
  longest.longest_first = true;
  if (all && many && !platform.cuda) {
    for (const double whole : {1e-6, 16e-6}) out.push_back(StageLayout{1, whole});
    out.push_back(StageLayout{1, kLongRun, true});  // side by side: no stage is longer
    longest.whole = kLongRun;
  }
  if (all && many) out.push_back(longest);
  if (all) out.push_back(StageLayout{4, 0, true});
  if (all && many) out.push_back(StageLayout{1, 0, false, true});
  if (request.kind == ModeRequest::Kind::automatic) out.emplace_back(std::nullopt);
  return out;
}

/// On a GPU several runs each: the first is on cold caches. On a CPU it finds its data in the
/// caches of those processors that the candidate before it used.
Status time_in_turns(std::vector<Contender>& list, runtime::Session& session,
                     const std::vector<Tensor>& inputs, double seconds, int runs, bool all) {
  const double begin = now();
  for (int turn = 0; turn < kFewestTurns || (turn < kMostTurns && now() - begin < seconds); ++turn)
    for (Contender& c : list) {
      HEDDLE_TRY(session.use(c.layout));
      const std::vector<double> taken = HEDDLE_TRY(session.time_runs(inputs, runs));
      c.seconds.insert(c.seconds.end(), all ? taken.begin() : taken.end() - 1, taken.end());
    }
  return Ok{};
}

/// Whether no layout is much faster than all stages on one worker, which take long enough for that:
/// as they were profiled, or each whole, where sharing them out was no better.
bool threads_gain_nothing(const std::vector<Contender>& list, const runtime::Program& program) {
  constexpr double kMuch = 0.75, kLong = 1e-3;
  double alone = 0, shared = 1e30, whole = 1e30;
  for (const runtime::Launch& launch : program.launches) alone += launch.seconds;
  for (const Contender& c : list) {
    double& best = c.layout && c.layout->whole >= kLongRun ? whole : shared;
    best = std::min(best, c.typical(false));
  }
  if (shared > whole) alone = std::min(alone, whole);
  return alone > kLong && std::min(shared, whole) > kMuch * alone;
}

/// Where threads seem to gain nothing, somebody else may have had a processor meanwhile: some more
/// turns, later and later.
Status time_until_sure(std::vector<Contender>& list, runtime::Session& session,
                       const std::vector<Tensor>& inputs, double seconds, int runs,
                       const runtime::Program& program) {
  constexpr int kAgain = 3;
  std::chrono::milliseconds pause(100);
  for (int i = 0; i < kAgain && threads_gain_nothing(list, program); ++i) {
    std::this_thread::sleep_for(pause *= 2);
    HEDDLE_TRY(time_in_turns(list, session, inputs, seconds, runs, false));
  }
  return Ok{};
}

std::vector<Tensor> plain_inputs(const runtime::Program& program) {
  std::mt19937_64 random(1);
  std::vector<Tensor> inputs;
  for (const runtime::Port& port : program.inputs)
    inputs.push_back(plain_values(port.type, random));
  return inputs;
}

/// By the file of --locked, or, where nothing may be measured, what that leaves.
Result<std::optional<ModeReport>> locked_mode(runtime::Program& program, const ModeRequest& request,
                                              const Platform& platform,
                                              const CompileOptions& options) {
  const bool known = HEDDLE_TRY(recall_mode(program, options, platform));
  if (!known && HEDDLE_TRY(budget_seconds(options.budget)) > 0) return std::optional<ModeReport>();
  if (!known && request.tuned)
    return fail(ErrorCode::usage,
                "--mode {}: found no stages tuned in '{}' and --budget none, want one of both",
                options.mode, options.locked);
  ModeReport report;
  report.chosen = to_string(program.monolith);
  report.reason = known ? "locked: as it was measured" : "locked: no decision in it, not measured";
  return std::optional(report);
}

}  // namespace

Result<ModeReport> measure_modes(runtime::Program& program, const ModeRequest& request,
                                 const Platform& platform, const CompileOptions& options,
                                 double compile_seconds) {
  ModeReport report;
  const std::vector<Tensor> inputs = plain_inputs(program);
  const auto executor = HEDDLE_TRY(executor_for(program, options));
  const auto session = [&] {
    return executor->session(std::make_shared<runtime::Program>(program));
  };
  double run_seconds = 0;
  HEDDLE_TRY(take_times(program, *HEDDLE_TRY(session()), inputs, &run_seconds));
  const double seconds = std::clamp(kShare * compile_seconds, kFewest, kSeconds);
  const auto running = HEDDLE_TRY(session());
  for (const double begin = now(); now() - begin < kSettled;) HEDDLE_TRY(running->run(inputs));
  std::vector<Contender> list;
  for (const auto& layout : candidates(request, platform, run_seconds)) list.push_back({layout});
  if (request.tuned || (many_workers(platform) && !request.layout && run_seconds < kLongRun)) {
    const StageTuning tuned =
        HEDDLE_TRY(tune_stages(program, *running, inputs, kTuneShare * seconds));
    StageLayout& layout = list.emplace_back(StageLayout{}).layout.emplace();
    layout.own = tuned.own;
    layout.depth_first = true;
    report.tuning = to_string(tuned);
  }
  const int runs = platform.cuda ? kTimedRuns : run_seconds < kLongRun ? kWarmRuns : 1;
  HEDDLE_TRY(time_in_turns(list, *running, inputs, seconds, runs, platform.cuda));
  if (!platform.cuda && platform.threads > 1 && !request.layout)
    HEDDLE_TRY(time_until_sure(list, *running, inputs, seconds, runs, program));
  for (const Contender& c : list)
    report.measured.emplace_back(to_string(c.layout), 1e6 * c.typical(platform.cuda));
  for (const auto& [name, us] : report.measured) log(LogLevel::info, "{}: {:.1f} us", name, us);
  // Kernels one after another need less memory: what is hardly faster does not replace them.
  constexpr double kHardly = 1.01;
  const auto best = std::ranges::min_element(list, {}, [&](const Contender& c) {
    return c.typical(platform.cuda) * (c.layout ? kHardly : 1);
  });
  program.monolith = best->layout;
  report.chosen = to_string(best->layout);
  report.reason = fmt::format("fastest of {} measured, {} runs", list.size(), best->seconds.size());
  return report;
}

Result<ModeReport> settle_mode(runtime::Program& program, const ModeRequest& request,
                               const Platform& platform, const CompileOptions& options,
                               double compile_seconds) {
  ModeReport report;
  if (request.kind == ModeRequest::Kind::kernels) {
    report.reason = request.reason;
    return report;
  }
  if (platform.cuda && request.kind == ModeRequest::Kind::automatic) {
    report.reason = "auto: measured with a budget only";
    return report;
  }
  program.monolith = request.layout.value_or(StageLayout{});
  if (request.layout || platform.cuda || !runs_here(platform.cpu).ok()) {
    report.chosen = to_string(program.monolith);
    report.reason = platform.cuda || request.layout ? request.reason : "not measured";
    return report;
  }
  if (!options.locked.empty()) {
    if (const auto known = HEDDLE_TRY(locked_mode(program, request, platform, options)))
      return *known;
  }
  report = HEDDLE_TRY(measure_modes(program, request, platform, options, compile_seconds));
  if (!options.locked.empty()) {
    HEDDLE_TRY(keep_mode(program, options, platform));
    HEDDLE_TRY(recall_mode(program, options, platform));  // what another process may have kept
    report.chosen = to_string(program.monolith);
  }
  return report;
}

Result<ModeReport> faster_program(const runtime::Program& kernels, const runtime::Program& monolith,
                                  const CompileOptions& options) {
  const std::vector<Tensor> inputs = plain_inputs(kernels);
  struct Timed {
    std::string name;
    std::shared_ptr<runtime::Session> session;
    std::vector<double> seconds = {};
  };
  std::vector<Timed> list;
  for (const auto& [name, program] : {std::pair{std::string("kernels"), &kernels},
                                      std::pair{to_string(monolith.monolith), &monolith}}) {
    const auto executor = HEDDLE_TRY(executor_for(*program, options));
    list.push_back(
        {name, HEDDLE_TRY(executor->session(std::make_shared<runtime::Program>(*program)))});
  }
  for (int turn = 0; turn < kFewestTurns; ++turn)
    for (Timed& t : list) {
      const std::vector<double> seconds = HEDDLE_TRY(t.session->time_runs(inputs, kTimedRuns));
      t.seconds.insert(t.seconds.end(), seconds.begin(), seconds.end());
    }
  ModeReport report;
  for (Timed& t : list) {
    std::ranges::sort(t.seconds);
    report.measured.emplace_back(t.name, 1e6 * t.seconds[t.seconds.size() / 2]);
  }
  report.chosen =
      std::ranges::min_element(report.measured, {}, [](const auto& m) { return m.second; })->first;
  report.reason =
      fmt::format("fastest of {} measured, {} runs", list.size(), list[0].seconds.size());
  return report;
}

std::string to_string(const std::optional<StageLayout>& layout) {
  if (!layout) return "kernels";
  if (!layout->own.empty()) return "monolith:tuned";
  std::string text;
  const auto add = [&](std::string part) { text += (text.empty() ? ":" : ",") + std::move(part); };
  if (layout->grain != 1) add(fmt::format("grain={}", layout->grain));
  if (layout->whole > 0) add(fmt::format("whole={:g}", 1e6 * layout->whole));
  if (layout->longest_first) add("longest");
  if (layout->depth_first) add("depth");
  if (layout->barriers) add("barriers");
  return "monolith" + text;
}

namespace {

Result<double> number(const std::string& part, std::size_t from) {
  double value = 0;
  const char* end = part.data() + part.size();
  // Digits first: neither blanks nor "inf".
  const auto [stop, error] = std::from_chars(part.data() + from, end, value);
  if (error != std::errc() || stop != end || !(value >= 0 && value <= 1e6))
    return fail(ErrorCode::usage, "--mode: found '{}', want a number", part);
  return value;
}

}  // namespace

Result<ModeRequest> parse_mode(const std::string& text) {
  using Kind = ModeRequest::Kind;
  if (text == "kernels") return ModeRequest{Kind::kernels};
  if (text == "auto") return ModeRequest{Kind::automatic};
  if (text == "monolith:tuned") return ModeRequest{Kind::monolith, {}, true};
  if (text == "monolith") return ModeRequest{Kind::monolith};
  if (!text.starts_with("monolith:") || text == "monolith:")
    return fail(ErrorCode::usage,
                "--mode: found '{}', want kernels, monolith, auto, or "
                "monolith:tuned or monolith:grain=4,whole=2.5,depth,longest,barriers",
                text);
  StageLayout layout;
  for (std::size_t at = 9; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    if (part.starts_with("grain=")) {
      const double grain = HEDDLE_TRY(number(part, 6));
      if (grain != std::floor(grain) || grain < 1 || grain > 1024)
        return fail(ErrorCode::usage, "--mode: found '{}', want a whole number from 1 to 1024",
                    part);
      layout.grain = static_cast<int>(grain);
    } else if (part.starts_with("whole="))
      layout.whole = 1e-9 * std::round(1e3 * HEDDLE_TRY(number(part, 6)));
    else if (part == "depth")
      layout.depth_first = true;
    else if (part == "longest")
      layout.longest_first = true;
    else if (part == "barriers")
      layout.barriers = true;
    else
      return fail(ErrorCode::usage,
                  "--mode: found '{}', want grain=N, whole=US, depth, longest or barriers", part);
    at = end + 1;
  }
  return ModeRequest{Kind::monolith, layout};
}

}  // namespace heddle::driver
