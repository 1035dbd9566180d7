#include "support/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace heddle {

Hash hash_bytes(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

std::string to_string(const Hash& hash) {
  return fmt::format("{:016x}{:016x}", hash.high, hash.low);
}

}  // namespace heddle
