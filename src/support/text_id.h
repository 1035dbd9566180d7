#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "support/result.h"

/// Strings in tensors are numbers: a 53-bit hash of the text, so that kernels can move and compare
/// them, doubles hold them, and they mean the same in every process. What a number stands for is
/// remembered for as long as the process lives.
namespace heddle {

/// The number of `text`, which is remembered; 0 is the empty text. Fails if another text has the
/// same number, or if the texts remembered take more than a gigabyte.
Result<std::int64_t> text_id(std::string_view text);
/// The text of a number that text_id() gave; nullopt for others.
std::optional<std::string> text_of(std::int64_t id);

}  // namespace heddle
