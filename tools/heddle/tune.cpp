#include "common.h"
#include "driver/cache.h"
#include "driver/measure.h"
#include "staged.h"

namespace heddle::tool {
namespace {

struct TuneFlags : ModelFlags {
  TuneFlags() { budget = "full"; }
  std::string save;
};

/// What the kernels of the plan that `--budget none` makes have been found to run best as.
Result<int> save(const TuneFlags& flags, driver::CompileOptions options) {
  options.budget = options.options.schedules = "none";
  return driver::save_schedules(HEDDLE_TRY(driver::plan_file(flags.model, options)), options,
                                flags.save);
}

Status run(const TuneFlags& flags) {
  HEDDLE_TRY(want_graph(flags, "tune"));
  HEDDLE_TRY(want_one_size(flags, "tune"));
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  if (flags.budget == "none")
    return fail(ErrorCode::usage, "tune: found --budget none, want seconds, or full");
  if (!options.locked.empty())
    return fail(ErrorCode::usage,
                "tune: found --locked, want --cache (compile --locked FILE makes such a file)");
  if (options.options.cache_dir.empty())
    return fail(ErrorCode::usage,
                "tune: found --cache none, want a folder where the measurements are kept");
  if (!flags.save.empty()) HEDDLE_TRY(driver::may_save_schedules(options, flags.save));
  const driver::Compiled compiled =
      HEDDLE_TRY(or_stages(flags, driver::plan_file(flags.model, options)));
  const plan::MeasureReport& m = compiled.measured;
  if (m.failed > 0 && m.timed + m.from_db == 0)
    return fail("tune: nothing could be measured, {} kernels failed: {}", m.failed,
                m.failures.front());
  const int saved = flags.save.empty() ? 0 : HEDDLE_TRY(save(flags, options));
  if (flags.json) {
    fmt::print("{}\n", nlohmann::json{{"model", flags.model},
                                      {"database", options.options.cache_dir + "/tuning.db"},
                                      {"timed", m.timed},
                                      {"known", m.from_db},
                                      {"failed", m.failed},
                                      {"failures", m.failures},
                                      {"seconds", m.seconds},
                                      {"complete", !m.budget_spent},
                                      {"settled", m.settled},
                                      {"saved", saved},
                                      {"kernels", compiled.kernels.size()},
                                      {"plan_us", compiled.plan.cost_us}}
                           .dump(2));
    return Ok{};
  }
  fmt::print("{}: {} candidates timed, {} known before, {} failed, {:.1f} s{}\n", flags.model,
             m.timed, m.from_db, m.failed, m.seconds,
             m.budget_spent ? " (more remain: the same command goes on)"
             : m.settled    ? " (settled: more measuring found no faster plan)"
                            : "");
  for (std::size_t i = 0; i < std::min<std::size_t>(m.failures.size(), 3); ++i)
    fmt::print("  failed: {}\n", m.failures[i]);
  fmt::print("  plan: {} kernels, {:.1f} us; measurements are in {}/tuning.db\n",
             compiled.kernels.size(), compiled.plan.cost_us, options.options.cache_dir);
  return Ok{};
}

}  // namespace

Verb add_tune(CLI::App& verb) {
  auto flags = std::make_shared<TuneFlags>();
  add_model_flags(verb, *flags, false);
  verb.add_option("--save", flags->save,
                  "file of schedules (see --schedules) to which those of the kernels that --budget "
                  "none chooses are added");
  return [flags] { return run(*flags); };
}

}  // namespace heddle::tool
