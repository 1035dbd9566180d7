#pragma once
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lower/lower.h"
#include "plan/machine.h"
#include "support/hash.h"
#include "support/result.h"

struct sqlite3;

namespace heddle::plan {

/// What a measurement is of. Anything that can change the time is in here.
struct TuningKey {
  Hash structure;       ///< primitives, shapes, dtypes, layouts, threads (structure_of)
  std::string machine;  ///< processor, caches, vector level
  std::string build;    ///< of the compiler: code changes make times stale
  bool operator==(const TuningKey&) const = default;
};
struct TuningEntry {
  TuningKey key;
  std::string label;  ///< for people: "contract 128x768x768 + 4 maps"
  lower::Tuning tuning;
  double us = 0;
  int runs = 1;  ///< timings behind `us`
  bool operator==(const TuningEntry&) const = default;
};
/// Why nothing was found.
struct TuningMiss {
  std::string reason;
};

/// Everything that decides the code of a cluster, as text; equal for equal clusters of different
/// graphs. `layout_of` may be empty (all row-major).
std::string structure_of(const prim::Graph& g, const lower::Cluster& c, int threads,
                         const std::function<lower::Layout(prim::NodeId)>& layout_of = {});

/// `structure` with what its time is of: constants that are `near` (reuse.h), or in memory.
Hash measured_structure(Hash structure, bool near);

/// Measurements in an SQLite file (write-ahead log, so that several processes may share it).
/// Every call fails with a message that names the file when the file is damaged or locked.
class TuningDb {
 public:
  /// Opens or creates; ":memory:" keeps it in memory.
  static Result<std::unique_ptr<TuningDb>> open(const std::string& path);
  /// True if there is a file, and it is no database or has damaged pages.
  static bool is_damaged(const std::string& path);
  ~TuningDb();
  TuningDb(const TuningDb&) = delete;
  TuningDb& operator=(const TuningDb&) = delete;

  /// Keeps the faster of this and an equal key and tuning that is there.
  Status store(const TuningEntry& entry);
  /// The fastest tuning of a key, or why there is none.
  Result<std::variant<TuningEntry, TuningMiss>> lookup(const TuningKey& key) const;
  Result<std::vector<TuningEntry>> list() const;
  /// SQLite's integrity check, and that every row reads back sensibly.
  Status verify() const;
  /// Deletes what other machines or builds measured; returns how many rows.
  Result<int> prune(const std::string& machine, const std::string& build);
  /// A copy in a new file.
  Status export_to(const std::string& path) const;
  /// Takes the other file's measurements, the faster where both have one; returns rows taken.
  Result<int> merge(const std::string& path);

  /// The calibrated model of a machine.
  Status store_machine(const std::string& machine, const MachineModel& model);
  Result<std::optional<MachineModel>> machine(const std::string& machine) const;

  /// How a program runs (key: of the whole program), in the driver's own words; what is there
  /// first stays, so that all who share the file decide the same.
  Status store_mode(const TuningKey& key, const std::string& decision);
  Result<std::optional<std::string>> mode(const TuningKey& key) const;

 private:
  TuningDb(sqlite3* db, std::string path) : db_(db), path_(std::move(path)) {}
  sqlite3* db_;
  std::string path_;
};

std::optional<Hash> parse_hash(const std::string& text);  ///< 32 hexadecimal digits
std::string to_string(const lower::Tuning& tuning);       ///< "mr=6 nv=2"
std::optional<lower::Tuning> parse_tuning(std::string_view text);

}  // namespace heddle::plan
