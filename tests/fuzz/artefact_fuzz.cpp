// Arbitrary bytes as an artefact: refused with an error or read, never a crash or a huge
// allocation.
#include <cstdint>
#include <cstring>

#include "runtime/artefact.h"
#include "runtime/chain.h"
#include "runtime/sized.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Constants are used in place, so the bytes must be aligned as those of a file.
  const heddle::Tensor copy({heddle::DType::u8, {static_cast<std::int64_t>(size)}});
  std::memcpy(const_cast<std::byte*>(copy.data()), data, size);
  using heddle::runtime::Checksums;
  for (Checksums checksums : {Checksums::compared, Checksums::ignored}) {
    (void)heddle::runtime::parse_artefact(copy.data(), size, nullptr, checksums).ok();
    (void)heddle::runtime::parse_sized_artefact(copy.data(), size, nullptr, checksums).ok();
    (void)heddle::runtime::parse_chain_artefact(copy.data(), size, nullptr, checksums).ok();
  }
  return 0;
}
