#include "support/json.h"

namespace heddle {

using nlohmann::json;

std::optional<json> parse_whole_json(std::string_view text) {
  bool whole = true;
  const auto see = [&](int, json::parse_event_t, const json& parsed) {
    whole = whole && !parsed.is_number_float();
    return true;
  };
  json j = json::parse(text, see, /*allow_exceptions=*/false);
  if (j.is_discarded() || !whole) return std::nullopt;
  return j;
}

}  // namespace heddle
