#include <filesystem>

#include "driver/cache.h"

#include "common.h"
#include "driver/code_cache.h"
#include "driver/measure.h"
#include "plan/calibrate.h"

namespace heddle::tool {
namespace {

using nlohmann::json;

struct CacheFlags {
  bool json = false, all = false;
  int days = 30;
  std::string file;
};

std::string folder() { return global_options().cache_dir; }

Status list(const CacheFlags& flags) {
  const driver::CacheListing listing = driver::list_cache(folder());
  const auto db = HEDDLE_TRY(driver::open_tuning_db(folder()));
  const std::vector<plan::TuningEntry> entries = HEDDLE_TRY(db->list());
  if (flags.json) {
    json rows = json::array();
    for (const plan::TuningEntry& e : entries)
      rows.push_back({{"label", e.label},
                      {"us", e.us},
                      {"runs", e.runs},
                      {"tuning", plan::to_string(e.tuning)},
                      {"machine", e.key.machine},
                      {"build", e.key.build}});
    fmt::print("{}\n", json{{"folder", folder()},
                            {"objects", listing.objects},
                            {"programs", listing.programs},
                            {"bytes", listing.bytes},
                            {"measurements", rows}}
                           .dump(2));
    return Ok{};
  }
  fmt::print("{}: {} compiled batches, {} programs, {:.1f} MB; {} measurements\n", folder(),
             listing.objects, listing.programs, static_cast<double>(listing.bytes) / 1e6,
             entries.size());
  if (!flags.all) return Ok{};
  for (const plan::TuningEntry& e : entries)
    fmt::print("{:10.1f} us  {}  {}  [{}; {}]\n", e.us, e.label, plan::to_string(e.tuning),
               e.key.machine, e.key.build);
  return Ok{};
}

Status verify(const CacheFlags& flags) {
  const int removed = driver::verify_cache(folder());
  if (!flags.json) fmt::print("{} damaged entries removed\n", removed);
  HEDDLE_TRY(HEDDLE_TRY(driver::open_tuning_db(folder()))->verify());
  if (flags.json)
    fmt::print("{}\n", json{{"damaged_removed", removed}, {"tuning_sound", true}}.dump(2));
  else
    fmt::print("the tuning database is sound\n");
  return Ok{};
}

Status prune(const CacheFlags& flags) {
  const int entries = driver::prune_cache(folder(), flags.days);
  const codegen::cpu::Machine machine = HEDDLE_TRY(driver::machine_for(global_options()));
  const auto db = HEDDLE_TRY(driver::open_tuning_db(folder()));
  const int rows = HEDDLE_TRY(db->prune(
      plan::machine_name(driver::machine_threads(), machine.vector_bytes), driver::build_id()));
  if (flags.json)
    fmt::print("{}\n", json{{"entries_removed", entries}, {"measurements_removed", rows}}.dump(2));
  else
    fmt::print("{} entries removed\n{} measurements of other machines or builds removed\n", entries,
               rows);
  return Ok{};
}

Status export_to(const CacheFlags& flags) {
  HEDDLE_TRY(HEDDLE_TRY(driver::open_tuning_db(folder()))->export_to(flags.file));
  if (flags.json)
    fmt::print("{}\n", json{{"file", flags.file}}.dump(2));
  else
    fmt::print("{}\n", flags.file);
  return Ok{};
}

Status merge(const CacheFlags& flags) {
  if (!std::filesystem::exists(flags.file))
    return fail(ErrorCode::usage, "{}: no such file", flags.file);
  const int rows = HEDDLE_TRY(HEDDLE_TRY(driver::open_tuning_db(folder()))->merge(flags.file));
  if (flags.json)
    fmt::print("{}\n", json{{"file", flags.file}, {"measurements_taken", rows}}.dump(2));
  else
    fmt::print("{} measurements taken\n", rows);
  return Ok{};
}

struct Row {
  const char *name, *help;
  Status (*run)(const CacheFlags&);
};
constexpr Row kRows[] = {
    {"ls", "what is there and how large it is", list},
    {"verify", "recompute checksums, remove damaged entries", verify},
    {"prune", "remove entries not used for some days, and other builds' measurements", prune},
    {"export", "copy the tuning database to a file", export_to},
    {"merge", "take the measurements of another tuning database", merge},
};

}  // namespace

Verb add_cache(CLI::App& verb) {
  auto flags = std::make_shared<CacheFlags>();
  std::vector<std::pair<CLI::App*, const Row*>> rows;
  for (const Row& row : kRows) {
    rows.emplace_back(verb.add_subcommand(row.name, row.help), &row);
    rows.back().first->add_flag("--json", flags->json, "print JSON");
  }
  rows[0].first->add_flag("--all", flags->all, "every measurement too");
  rows[2]
      .first->add_option("--days", flags->days, "age in days")
      ->capture_default_str()
      ->check(CLI::Range(0, 36500));
  for (int i : {3, 4})
    rows[static_cast<std::size_t>(i)]
        .first->add_option("file", flags->file, "SQLite file")
        ->required();
  verb.require_subcommand(1);
  return [=]() -> Status {
    if (folder().empty())
      return fail(ErrorCode::usage, "cache: no folder is set (HEDDLE_CACHE_DIR)");
    for (const auto& [sub, row] : rows)
      if (sub->parsed()) return row->run(*flags);
    return Ok{};
  };
}

}  // namespace heddle::tool
