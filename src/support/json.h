#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace heddle {

/// JSON of one of our own file formats, whose numbers are all whole; nothing for malformed text or
/// any other number (nlohmann's conversion of one to an integer is undefined past the integer's
/// range).
std::optional<nlohmann::json> parse_whole_json(std::string_view text);

}  // namespace heddle
