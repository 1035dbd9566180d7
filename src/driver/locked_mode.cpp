#include "driver/locked_mode.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "driver/code_cache.h"
#include "plan/tuning_db.h"
#include "runtime/artefact_parts.h"

namespace heddle::driver {
namespace {

using nlohmann::json;

/// The code in its order and what was asked for: equal plans have equal keys.
plan::TuningKey tuning_key_of(const runtime::Program& program, const CompileOptions& options,
                              const Platform& platform) {
  std::string text = fmt::format("mode {}, limit {}\n", options.mode, options.memory_limit);
  for (const runtime::Launch& launch : program.launches)
    for (const runtime::Phase& phase : launch.phases)
      text += fmt::format("{} {} {}\n", launch.name, phase.symbol, phase.tasks);
  return {hash_bytes(text), platform.machine_name(), build_id()};
}

Status apply(const std::string& text, runtime::Program& program) {
  const json j = json::parse(text);
  std::optional<runtime::StageLayout> layout;
  if (j.contains("layout")) layout = HEDDLE_TRY(runtime::layout_from(j.at("layout")));
  if (layout) HEDDLE_TRY(runtime::check_layout(program, *layout));
  const auto ns = j.at("ns").get<std::vector<double>>();
  if (ns.size() != program.launches.size())
    return fail("found a mode of {} kernels, want {}", ns.size(), program.launches.size());
  if (!std::ranges::all_of(ns, [](double t) { return t >= 0 && t < 1e18; }))
    return fail("found a time that is none");
  for (std::size_t l = 0; l < ns.size(); ++l) program.launches[l].seconds = 1e-9 * ns[l];
  program.monolith = std::move(layout);
  return Ok{};
}

}  // namespace

Result<bool> recall_mode(runtime::Program& program, const CompileOptions& options,
                         const Platform& platform) {
  const auto db = HEDDLE_TRY(plan::TuningDb::open(options.locked));
  const auto text = HEDDLE_TRY(db->mode(tuning_key_of(program, options, platform)));
  if (!text) return false;
  try {
    const Status applied = apply(*text, program);
    if (applied) return true;
    return fail("--locked: {}: {}", options.locked, applied.error().message);
  } catch (const json::exception& e) {
    return fail("--locked: {}: {}", options.locked, e.what());
  }
}

Status keep_mode(const runtime::Program& program, const CompileOptions& options,
                 const Platform& platform) {
  json ns = json::array();
  for (const runtime::Launch& launch : program.launches)
    ns.push_back(std::round(1e9 * launch.seconds));
  json decision = {{"ns", ns}};
  if (program.monolith) decision["layout"] = runtime::layout_json(*program.monolith);
  const auto db = HEDDLE_TRY(plan::TuningDb::open(options.locked));
  return db->store_mode(tuning_key_of(program, options, platform), decision.dump());
}

}  // namespace heddle::driver
