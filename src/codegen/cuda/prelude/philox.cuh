// Counter-based random numbers: the same bits as ir/philox.h.
#pragma once

namespace hd {

struct PhiloxBlock {
  u32 word[4];
};
/// Philox 4x32-10 (Salmon et al., SC 2011): four random words from a counter and a key.
HD_FN PhiloxBlock philox(u64 counter, u64 key) {
  PhiloxBlock x = {{static_cast<u32>(counter), static_cast<u32>(counter >> 32), 0, 0}};
  u32 k0 = static_cast<u32>(key), k1 = static_cast<u32>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const u64 p0 = u64(0xD2511F53u) * x.word[0], p1 = u64(0xCD9E8D57u) * x.word[2];
    x = {{static_cast<u32>(p1 >> 32) ^ x.word[1] ^ k0, static_cast<u32>(p1),
          static_cast<u32>(p0 >> 32) ^ x.word[3] ^ k1, static_cast<u32>(p0)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x;
}
/// One word of a block, without indexing registers by a run-time value (which would go to memory).
HD_FN u32 word_of(const PhiloxBlock& x, unsigned i) {
  const u32 low = i & 1 ? x.word[1] : x.word[0], high = i & 1 ? x.word[3] : x.word[2];
  return i & 2 ? high : low;
}
/// ScalarFn::random_bits.
HD_FN i64 random_bits(i64 i, i64 key) {
  const u64 at = static_cast<u64>(i);
  return word_of(philox(at / 4, static_cast<u64>(key)), at % 4) >> 8;
}
/// Element i of a uniform [0,1) tensor.
HD_FN float random_uniform(u64 seed, u64 i) {
  return static_cast<float>(word_of(philox(i / 4, seed), i % 4) >> 8) * 0x1p-24f;
}
/// Element i of a standard normal tensor: Box-Muller in double precision, as the reference.
HD_FN float random_normal(u64 seed, u64 i) {
  const PhiloxBlock block = philox(i / 4, seed);
  const unsigned pair = i % 4 / 2 * 2;
  const double u = ((word_of(block, pair) >> 8) + 1) * 0x1p-24;
  const double v = (word_of(block, pair + 1) >> 8) * 0x1p-24;
  // cospi reduces its argument exactly: no slow path for large angles.
  const double wave = i % 2 == 0 ? ::cospi(2 * v) : ::sinpi(2 * v);
  return static_cast<float>(::sqrt(-2 * ::log(u)) * wave);
}

}  // namespace hd
