#include "driver/locked_mode.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "driver/code_cache.h"
#include "driver/mode.h"
#include "plan/tuning_db.h"

namespace heddle::driver {
namespace {

using nlohmann::json;

/// The code in its order and what was asked for: equal plans have equal keys.
plan::TuningKey key_of(const runtime::Program& program, const CompileOptions& options,
                       const Platform& platform) {
  std::string text = fmt::format("mode {}, limit {}\n", options.mode, options.memory_limit);
  for (const runtime::Launch& launch : program.launches)
    for (const runtime::Phase& phase : launch.phases)
      text += fmt::format("{} {} {}\n", launch.name, phase.symbol, phase.tasks);
  return {hash_bytes(text), platform.machine_name(), build_id()};
}

Status apply(const std::string& text, runtime::Program& program) {
  const json j = json::parse(text);
  const ModeRequest mode = HEDDLE_TRY(parse_mode(j.at("chosen").get<std::string>()));
  const auto ns = j.at("ns").get<std::vector<double>>();
  std::size_t stages = 0;
  for (const runtime::Launch& launch : program.launches) stages += launch.phases.size();
  runtime::StageLayout layout = mode.layout.value_or(runtime::StageLayout{});
  if (mode.tuned) {
    layout.depth_first = true;
    for (const json& c : j.at("own"))
      layout.own.push_back({c.at(0).get<int>(), c.at(1).get<bool>()});
  }
  if (ns.size() != program.launches.size() || (mode.tuned && layout.own.size() != stages))
    return fail("found a mode of {} kernels and {} stages, want {} and {}", ns.size(),
                layout.own.size(), program.launches.size(), stages);
  constexpr int kMostItems = 1024;
  for (const runtime::StageChoice& c : layout.own)
    if (c.grain < 0 || c.grain > kMostItems) return fail("found a stage of {} items", c.grain);
  if (!std::ranges::all_of(ns, [](double t) { return t >= 0 && t < 1e18; }))
    return fail("found a time that is none");
  for (std::size_t l = 0; l < ns.size(); ++l) program.launches[l].seconds = 1e-9 * ns[l];
  program.monolith.reset();
  if (mode.kind != ModeRequest::Kind::kernels) program.monolith = layout;
  return Ok{};
}

}  // namespace

Result<bool> recall_mode(runtime::Program& program, const CompileOptions& options,
                         const Platform& platform) {
  const auto db = HEDDLE_TRY(plan::TuningDb::open(options.locked));
  const auto text = HEDDLE_TRY(db->mode(key_of(program, options, platform)));
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
  json ns = json::array(), own = json::array();
  for (const runtime::Launch& launch : program.launches)
    ns.push_back(std::round(1e9 * launch.seconds));
  if (program.monolith)
    for (const runtime::StageChoice& c : program.monolith->own) own.push_back({c.grain, c.meet});
  const json decision = {{"chosen", to_string(program.monolith)}, {"ns", ns}, {"own", own}};
  const auto db = HEDDLE_TRY(plan::TuningDb::open(options.locked));
  return db->store_mode(key_of(program, options, platform), decision.dump());
}

}  // namespace heddle::driver
