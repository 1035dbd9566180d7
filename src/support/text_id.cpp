#include "support/text_id.h"

#include <mutex>
#include <unordered_map>

#include "support/hash.h"

namespace heddle {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
constexpr std::uint64_t kMask = (std::uint64_t{1} << 53) - 1;

struct Known {
  std::mutex mutex;
  std::unordered_map<std::int64_t, std::string> texts;
  std::size_t bytes = 0;
};
Known& known() {
  static Known known;
  return known;
}

}  // namespace

Result<std::int64_t> text_id(std::string_view text) {
  if (text.empty()) return 0;
  const auto id = static_cast<std::int64_t>(hash_bytes(text).low & kMask);
  Known& k = known();
  const std::lock_guard lock(k.mutex);
  const auto [it, fresh] = k.texts.try_emplace(id, text);
  if (!fresh && it->second != text)
    return unsupported("the texts '{}' and '{}' have the same number", it->second, text);
  if (id == 0) return unsupported("the text '{}' has the empty text's number", text);
  if (fresh) k.bytes += text.size() + 64;
  if (k.bytes > kMaxBytes) return fail(ErrorCode::out_of_memory, "strings take more than 1 GiB");
  return id;
}

std::optional<std::string> text_of(std::int64_t id) {
  if (id == 0) return std::string();
  Known& k = known();
  const std::lock_guard lock(k.mutex);
  const auto it = k.texts.find(id);
  if (it == k.texts.end()) return std::nullopt;
  return it->second;
}

}  // namespace heddle
