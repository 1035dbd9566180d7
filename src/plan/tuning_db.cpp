#include "plan/tuning_db.h"

#include <sqlite3.h>

#include <charconv>
#include <map>

#include "plan/plan.h"

namespace heddle::plan {
namespace {

constexpr int kSchemaVersion = 1;
constexpr int kBusyMs = 10000;

constexpr const char* kDamaged = "it is damaged or no database: delete it, and it is made again";

bool says_damaged(int code) { return code == SQLITE_NOTADB || code == SQLITE_CORRUPT; }

/// What SQLite said last.
Error failure(sqlite3* db, const std::string& path) {
  if (db == nullptr) return fail("tuning database '{}': out of memory", path);
  return fail("tuning database '{}': {}{}{}", path, sqlite3_errmsg(db),
              says_damaged(sqlite3_errcode(db)) ? "; " : "",
              says_damaged(sqlite3_errcode(db)) ? kDamaged : "");
}

/// A prepared statement; errors are kept until asked for.
class Statement {
 public:
  Statement(sqlite3* db, const char* sql) : db_(db) {
    code_ = sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(const std::string& text) {
    if (statement_) {
      sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()),
                        SQLITE_TRANSIENT);
    }
    return *this;
  }
  Statement& bind(double value) {
    if (statement_) sqlite3_bind_double(statement_, ++bound_, value);
    return *this;
  }
  Statement& bind(int value) {
    if (statement_) sqlite3_bind_int(statement_, ++bound_, value);
    return *this;
  }
  /// True while there are rows.
  bool step() {
    if (code_ != SQLITE_OK && code_ != SQLITE_ROW) return false;
    code_ = sqlite3_step(statement_);
    return code_ == SQLITE_ROW;
  }
  Status finished(const std::string& path) const {
    if (code_ == SQLITE_DONE || code_ == SQLITE_ROW) return Ok{};
    return failure(db_, path);
  }
  std::string text(int column) const {
    const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    const auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement_, column));
    return data ? std::string(data, size) : std::string();
  }
  double real(int column) const { return sqlite3_column_double(statement_, column); }
  int integer(int column) const { return sqlite3_column_int(statement_, column); }

 private:
  sqlite3* db_;
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_OK, bound_ = 0;
};

Status run(sqlite3* db, const std::string& path, const char* sql) {
  if (sqlite3_exec(db, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return Ok{};
  return failure(db, path);
}

constexpr const char* kColumns = "structure, machine, build, label, tuning, us, runs";

std::optional<TuningEntry> read_row(const Statement& s) {
  TuningEntry e;
  auto hash = parse_hash(s.text(0));
  auto tuning = parse_tuning(s.text(4));
  if (!hash || !tuning || !(s.real(5) > 0)) return std::nullopt;
  e.key = {*hash, s.text(1), s.text(2)};
  e.label = s.text(3);
  e.tuning = *tuning;
  e.us = s.real(5);
  e.runs = s.integer(6);
  return e;
}

}  // namespace

std::optional<Hash> parse_hash(const std::string& text) {
  Hash h;
  if (text.size() != 32) return std::nullopt;
  const char* p = text.data();
  if (std::from_chars(p, p + 16, h.high, 16).ptr != p + 16) return std::nullopt;
  if (std::from_chars(p + 16, p + 32, h.low, 16).ptr != p + 32) return std::nullopt;
  return h;
}

std::string to_string(const lower::Tuning& tuning) {
  std::string out;
  for (const auto& [name, value] : tuning) {
    out += fmt::format("{}{}={}", out.empty() ? "" : " ", name, value);
  }
  return out;
}

std::optional<lower::Tuning> parse_tuning(std::string_view text) {
  lower::Tuning out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t equals = word.find('=');
    if (equals == 0 || equals == std::string_view::npos) return std::nullopt;
    std::int64_t value = 0;
    const char* stop = word.data() + word.size();
    auto [p, error] = std::from_chars(word.data() + equals + 1, stop, value);
    if (error != std::errc() || p != stop) return std::nullopt;
    out.emplace_back(std::string(word.substr(0, equals)), value);
  }
  return out;
}

std::string structure_of(const prim::Graph& g, const lower::Cluster& c, int threads,
                         const std::function<lower::Layout(prim::NodeId)>& layout_of) {
  std::string out = fmt::format("threads={}\n", threads);
  std::map<prim::NodeId, int> names;
  auto name = [&](prim::NodeId id) {
    auto [it, fresh] = names.try_emplace(id, static_cast<int>(names.size()));
    if (!fresh || std::binary_search(c.nodes.begin(), c.nodes.end(), id)) return it->second;
    const char* kind = g.constant_of(id) ? "constant" : "value";
    out += fmt::format("v{} {} {}", it->second, kind, heddle::to_string(g[id].type));
    if (layout_of && !g.constant_of(id)) {
      const lower::Layout l = layout_of(id);
      out += fmt::format(" strides={} size={}", heddle::to_string(l.strides), l.size);
    }
    out += '\n';
    return it->second;
  };
  for (prim::NodeId id : c.nodes) {
    std::string args;
    for (prim::NodeId a : g[id].args) args += fmt::format(" v{}", name(a));
    const bool stored = std::find(c.outputs.begin(), c.outputs.end(), id) != c.outputs.end();
    out += fmt::format("v{} {} {:016x}{} {}{}\n", name(id), prim::kind_name(g[id].op),
                       prim::hash_of(g[id].op), args, heddle::to_string(g[id].type),
                       stored ? " stored" : "");
  }
  return out;
}

Hash measured_structure(Hash structure, bool near) {
  return near ? hash_bytes(to_string(structure) + " constants near") : structure;
}

namespace {

/// The library's own wait for locks does not cover this, which two that make the file both do.
Status keep_a_log(sqlite3* db, const std::string& path) {
  for (int waited = 0;; ++waited) {
    const int code = sqlite3_exec(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL", nullptr,
                                  nullptr, nullptr);
    if (code == SQLITE_OK) return Ok{};
    if (code != SQLITE_BUSY || waited == kBusyMs) return failure(db, path);
    sqlite3_sleep(1);
  }
}

}  // namespace

Result<std::unique_ptr<TuningDb>> TuningDb::open(const std::string& path) {
  sqlite3* raw = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  std::unique_ptr<TuningDb> db(new TuningDb(raw, path));
  if (code != SQLITE_OK) return failure(raw, path);
  sqlite3_busy_timeout(raw, kBusyMs);
  int version = 0;
  {
    Statement s(raw, "PRAGMA user_version");
    if (s.step()) version = s.integer(0);
    HEDDLE_TRY(s.finished(path));
  }
  if (version != 0 && version != kSchemaVersion) {
    return fail("tuning database '{}': schema {}, want {}", path, version, kSchemaVersion);
  }
  HEDDLE_TRY(keep_a_log(raw, path));
  HEDDLE_TRY(
      run(raw, path,
          "BEGIN IMMEDIATE;"
          "CREATE TABLE IF NOT EXISTS measurement (structure TEXT NOT NULL, machine TEXT NOT "
          "NULL, build TEXT NOT NULL, label TEXT NOT NULL, tuning TEXT NOT NULL, us REAL NOT "
          "NULL, runs INTEGER NOT NULL, PRIMARY KEY (structure, machine, build, tuning));"
          "CREATE TABLE IF NOT EXISTS machine (name TEXT PRIMARY KEY, threads INTEGER, "
          "vector INTEGER, l1 INTEGER, l2 INTEGER, l3 INTEGER, l2_gbs REAL, l3_gbs REAL, "
          "dram_gbs REAL, peak REAL, launch REAL, "
          "loop_scale REAL, reduce_scale REAL, map_scale REAL);"
          "CREATE TABLE IF NOT EXISTS mode (structure TEXT NOT NULL, machine TEXT NOT NULL, "
          "build TEXT NOT NULL, decision TEXT NOT NULL, PRIMARY KEY (structure, machine, build));"
          "PRAGMA user_version=1; COMMIT"));
  return db;
}

bool TuningDb::is_damaged(const std::string& path) {
  sqlite3* raw = nullptr;
  const int opened = sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE, nullptr);
  const TuningDb db(raw, path);
  if (opened != SQLITE_OK) return false;  // not there, or not ours to read: open() says it
  sqlite3_busy_timeout(raw, kBusyMs);
  Statement s(raw, "PRAGMA quick_check(1)");
  if (s.step()) return s.text(0) != "ok";
  return says_damaged(sqlite3_errcode(raw));
}

TuningDb::~TuningDb() { sqlite3_close(db_); }

Status TuningDb::store(const TuningEntry& e) {
  if (!(e.us > 0)) return fail("measurement of '{}': {} us, want more than 0", e.label, e.us);
  Statement s(db_,
              "INSERT INTO measurement VALUES (?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET "
              "us=min(us, excluded.us), runs=runs+excluded.runs, label=excluded.label");
  s.bind(to_string(e.key.structure)).bind(e.key.machine).bind(e.key.build).bind(e.label);
  s.bind(to_string(e.tuning)).bind(e.us).bind(e.runs);
  s.step();
  return s.finished(path_);
}

Result<std::variant<TuningEntry, TuningMiss>> TuningDb::lookup(const TuningKey& key) const {
  using Answer = std::variant<TuningEntry, TuningMiss>;
  const std::string structure = to_string(key.structure);
  Statement s(db_, fmt::format("SELECT {} FROM measurement WHERE structure=? AND machine=? AND "
                               "build=? ORDER BY us LIMIT 1",
                               kColumns)
                       .c_str());
  s.bind(structure).bind(key.machine).bind(key.build);
  if (s.step()) {
    auto entry = read_row(s);
    if (!entry) return fail("tuning database '{}': row for {}: {}", path_, structure, kDamaged);
    return Answer(*entry);
  }
  HEDDLE_TRY(s.finished(path_));
  Statement others(db_,
                   "SELECT machine, build FROM measurement WHERE structure=? "
                   "ORDER BY machine=? DESC LIMIT 1");
  others.bind(structure).bind(key.machine);
  if (!others.step()) {
    HEDDLE_TRY(others.finished(path_));
    return Answer(TuningMiss{"never measured"});
  }
  if (others.text(0) == key.machine) {
    return Answer(TuningMiss{fmt::format("measured by another build: {}", others.text(1))});
  }
  return Answer(TuningMiss{fmt::format("measured on another machine: {}", others.text(0))});
}

Result<std::vector<TuningEntry>> TuningDb::list() const {
  Statement s(db_, fmt::format("SELECT {} FROM measurement ORDER BY machine, build, label, "
                               "structure, us",
                               kColumns)
                       .c_str());
  std::vector<TuningEntry> out;
  while (s.step()) {
    auto entry = read_row(s);
    if (!entry) return fail("tuning database '{}': row {}: {}", path_, out.size(), kDamaged);
    out.push_back(*std::move(entry));
  }
  HEDDLE_TRY(s.finished(path_));
  return out;
}

Status TuningDb::verify() const {
  Statement s(db_, "PRAGMA integrity_check");
  while (s.step()) {
    if (s.text(0) != "ok") return fail("tuning database '{}': {}", path_, s.text(0));
  }
  HEDDLE_TRY(s.finished(path_));
  HEDDLE_TRY(list());
  return Ok{};
}

Result<int> TuningDb::prune(const std::string& machine, const std::string& build) {
  Statement s(db_, "DELETE FROM measurement WHERE machine<>? OR build<>?");
  s.bind(machine).bind(build);
  s.step();
  HEDDLE_TRY(s.finished(path_));
  return sqlite3_changes(db_);
}

Status TuningDb::export_to(const std::string& path) const {
  Statement s(db_, "VACUUM INTO ?");
  s.bind(path);
  s.step();
  return s.finished(path_);
}

Result<int> TuningDb::merge(const std::string& path) {
  // Opened first: that checks the other file, and makes an old one's schema current.
  HEDDLE_TRY(TuningDb::open(path));
  {
    Statement attach(db_, "ATTACH ? AS other");
    attach.bind(path);
    attach.step();
    HEDDLE_TRY(attach.finished(path));
  }
  Status merged = run(db_, path,
                      "INSERT INTO measurement SELECT * FROM other.measurement WHERE true ON "
                      "CONFLICT DO UPDATE SET us=min(us, excluded.us), runs=runs+excluded.runs");
  const int rows = sqlite3_changes(db_);
  Status machines = run(db_, path, "INSERT OR IGNORE INTO machine SELECT * FROM other.machine");
  Status modes = run(db_, path, "INSERT OR IGNORE INTO mode SELECT * FROM other.mode");
  HEDDLE_TRY(run(db_, path, "DETACH other"));
  HEDDLE_TRY(std::move(merged));
  HEDDLE_TRY(std::move(machines));
  HEDDLE_TRY(std::move(modes));
  return rows;
}

Status TuningDb::store_mode(const TuningKey& key, const std::string& decision) {
  Statement s(db_, "INSERT OR IGNORE INTO mode VALUES (?,?,?,?)");
  s.bind(to_string(key.structure)).bind(key.machine).bind(key.build).bind(decision);
  s.step();
  return s.finished(path_);
}

Result<std::optional<std::string>> TuningDb::mode(const TuningKey& key) const {
  Statement s(db_, "SELECT decision FROM mode WHERE structure=? AND machine=? AND build=?");
  s.bind(to_string(key.structure)).bind(key.machine).bind(key.build);
  std::optional<std::string> out;
  if (s.step()) out = s.text(0);
  HEDDLE_TRY(s.finished(path_));
  return out;
}

Status TuningDb::store_machine(const std::string& machine, const MachineModel& m) {
  Statement s(db_, "INSERT OR REPLACE INTO machine VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
  s.bind(machine).bind(m.threads).bind(m.vector_bytes).bind(static_cast<double>(m.l1_bytes));
  s.bind(static_cast<double>(m.l2_bytes)).bind(static_cast<double>(m.l3_bytes));
  s.bind(m.l2_gbs).bind(m.l3_gbs).bind(m.dram_gbs).bind(m.peak_gflops).bind(m.launch_us);
  s.bind(m.loop_scale).bind(m.reduce_scale).bind(m.map_scale);
  s.step();
  return s.finished(path_);
}

Result<std::optional<MachineModel>> TuningDb::machine(const std::string& machine) const {
  Statement s(db_, "SELECT * FROM machine WHERE name=?");
  s.bind(machine);
  std::optional<MachineModel> out;
  if (s.step()) {
    out = MachineModel{s.integer(1),
                       s.integer(2),
                       static_cast<std::int64_t>(s.real(3)),
                       static_cast<std::int64_t>(s.real(4)),
                       static_cast<std::int64_t>(s.real(5)),
                       s.real(6),
                       s.real(7),
                       s.real(8),
                       s.real(9),
                       s.real(10),
                       s.real(11),
                       s.real(12),
                       s.real(13)};
  }
  HEDDLE_TRY(s.finished(path_));
  return out;
}

}  // namespace heddle::plan
