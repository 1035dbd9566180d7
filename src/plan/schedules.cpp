#include "plan/schedules.h"

#include <charconv>

namespace heddle::plan {
namespace {

/// The text up to `end`, which is taken off `text` with it.
std::string_view take_until(std::string_view& text, char end) {
  const std::string_view part = text.substr(0, text.find(end));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

template <class Number>
bool read_number(std::string_view text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}

/// "heddle schedules cpu=znver4 lowering=1".
bool read_first(std::string_view line, Schedules& out) {
  for (const std::string_view word : {"heddle", "schedules"})
    if (take_until(line, ' ') != word) return false;
  if (take_until(line, '=') != "cpu") return false;
  out.cpu = take_until(line, ' ');
  return !out.cpu.empty() && take_until(line, '=') == "lowering" && read_number(line, out.lowering);
}

bool read_row(std::string_view line, Schedules& out) {
  const auto structure = parse_hash(std::string(take_until(line, ' ')));
  Schedules::Row row;
  if (!structure || !read_number(take_until(line, ' '), row.us) || !(row.us > 0)) return false;
  const std::size_t mark = line.find(" # ");
  if (mark == std::string_view::npos) return false;
  const auto tuning = parse_tuning(line.substr(0, mark));
  if (!tuning || tuning->empty()) return false;
  row.tuning = *tuning;
  row.label = line.substr(mark + 3);
  return out.rows.emplace(*structure, std::move(row)).second;
}

}  // namespace

std::string print(const Schedules& schedules) {
  std::string out =
      fmt::format("heddle schedules cpu={} lowering={}\n", schedules.cpu, schedules.lowering);
  for (const auto& [structure, row] : schedules.rows)
    out += fmt::format("{} {:.1f} {} # {}\n", heddle::to_string(structure), row.us,
                       to_string(row.tuning), row.label);
  return out;
}

Result<Schedules> parse_schedules(std::string_view text, std::string_view file) {
  Schedules out;
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = take_until(text, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1 ? read_first(line, out) : read_row(line, out)) continue;
    return fail(ErrorCode::usage, "{}:{}: found '{}', want {}", file, number, line.substr(0, 120),
                number == 1 ? "'heddle schedules cpu=NAME lowering=NUMBER'"
                            : "'STRUCTURE MICROSECONDS SCHEDULE # label', each structure once");
  }
  if (out.cpu.empty()) return fail(ErrorCode::usage, "{}: it is empty", file);
  return out;
}

std::string staleness(const Schedules& schedules, std::string_view cpu) {
  if (schedules.cpu != cpu) return fmt::format("made for {}, this is {}", schedules.cpu, cpu);
  if (schedules.lowering != lower::kLoweringVersion)
    return fmt::format("made by version {} of the lowering, this is {}", schedules.lowering,
                       lower::kLoweringVersion);
  return "";
}

}  // namespace heddle::plan
