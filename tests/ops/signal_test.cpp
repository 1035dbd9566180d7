#include <cmath>

#include "rows.h"

namespace heddle::ops::rows {
namespace {

/// [1, n, parts], a 1 at `at`.
Value impulse(std::int64_t n, std::int64_t at, std::int64_t parts) {
  Value v = f32({1, n, parts}, std::vector<double>(static_cast<std::size_t>(n * parts)));
  v.data[static_cast<std::size_t>(at * parts)] = 1;
  return v;
}

/// Its transform, as complex numbers: [1, bins, 2].
Value turning(std::int64_t n, std::int64_t at, std::int64_t bins) {
  Value v = f32({1, bins, 2}, {});
  for (std::int64_t k = 0; k < bins; ++k) {
    const double angle =
        -2 * 3.14159265358979323846 * static_cast<double>(k * at) / static_cast<double>(n);
    v.data.insert(v.data.end(), {std::cos(angle), std::sin(angle)});
  }
  return v;
}

}  // namespace

std::vector<Row> signal_rows() {
  return {
      {"Hann", "HannWindow", 17, {}, {known(i64({}, {4}))}, {f32({4}, {0, 0.5, 1, 0.5})}, ""},
      {"HannNegative", "HannWindow", 17, {}, {known(i64({}, {-4}))}, {}, "size is -4"},
      {"DftReal", "DFT", 17, {}, {f32({1, 2, 1}, {1, 3})}, {f32({1, 2, 2}, {4, 0, -2, 0})}, ""},
      {"DftInverse",
       "DFT",
       20,
       {{"inverse", 1}},
       {f32({1, 2, 2}, {4, 0, -2, 0})},
       {f32({1, 2, 2}, {1, 0, 3, 0})},
       ""},
      {"DftLong", "DFT", 17, {}, {impulse(4096, 3, 1)}, {turning(4096, 3, 4096)}, ""},
      {"DftLongHalf",
       "DFT",
       17,
       {{"onesided", 1}},
       {impulse(6000, 7, 1)},
       {turning(6000, 7, 3001)},
       ""},
      {"DftLongInverse",
       "DFT",
       17,
       {{"inverse", 1}},
       {turning(4096, 3, 4096)},
       {impulse(4096, 3, 2)},
       ""},
      {"DftLongHalfInverse",
       "DFT",
       20,
       {{"inverse", 1}, {"onesided", 1}},
       {turning(6000, 7, 3001)},
       {impulse(6000, 7, 1)},
       ""},
      {"DftLongPrime", "DFT", 17, {}, {impulse(9001, 2, 1)}, {turning(9001, 2, 9001)}, ""},
      {"DftLongPrimeInverse",
       "DFT",
       20,
       {{"inverse", 1}, {"onesided", 1}},
       {turning(2 * 3001, 7, 3002)},
       {impulse(2 * 3001, 7, 1)},
       ""},
      {"DftLongPrimeHuge",
       "DFT",
       17,
       {},
       {count_up({1, 1, 2}), known(i64({}, {8388617}))},
       {},
       "which is prime; want at most 8388608"},
      {"Stft",
       "STFT",
       17,
       {},
       {f32({1, 3, 1}, {1, 3, 4}), known(i64({}, {1})), none(), known(i64({}, {2}))},
       {f32({1, 2, 2, 2}, {4, 0, -2, 0, 7, 0, -1, 0})},
       ""},
  };
}
INSTANTIATE_TEST_SUITE_P(Signal, OpRows, testing::ValuesIn(signal_rows()), name_of_row);

}  // namespace heddle::ops::rows
