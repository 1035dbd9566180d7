#pragma once
#include <cstring>
#include <random>

#include "kernel/footprint.h"

namespace heddle::kernel {

/// For tests: runs each share of each phase twice, the second time with other bytes wherever the
/// share is not said to read, and fails unless it writes only where it is said to, and the same.
/// `args`: as of interpret(), changed like there. `analysis`: what says so.
inline Status check_touches(Kernel k, std::vector<std::span<std::byte>> args, std::int64_t shares,
                            decltype(touches_of)* analysis = &touches_of) {
  std::vector<std::vector<std::byte>> locals;
  for (std::int32_t i = 0; i < k.buffers.size(); ++i) {
    Buffer& b = k.buffers[BufferId{i}];
    if (b.scope != Scope::grid || b.argument >= 0) continue;
    locals.emplace_back(static_cast<std::size_t>(b.size * size_of(b.dtype)));
    b.argument = static_cast<int>(args.size() + locals.size()) - 1;
    b.written = true;
  }
  for (auto& local : locals) args.emplace_back(local);
  std::mt19937_64 random(1);
  const Body body = k.body;
  for (const Stmt& s : body) {
    const For* phase = std::get_if<For>(&s.op);
    if (!phase || phase->end <= phase->begin) continue;
    const std::vector<Touch> touches = analysis(k, *phase, shares);
    const std::int64_t tasks = phase->end - phase->begin, n = std::min(shares, tasks);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto touched = [&](std::size_t arg, std::size_t byte, bool write) {
        for (const Touch& t : touches) {
          const Buffer& b = k.buffers[t.buffer];
          const ir::Interval x = t.shares[t.shares.size() == 1 ? 0 : static_cast<std::size_t>(i)];
          const auto element = static_cast<std::int64_t>(byte) / size_of(b.dtype);
          if (b.argument == static_cast<int>(arg) && t.write == write && x.low <= element &&
              element <= x.high)
            return true;
        }
        return false;
      };
      std::vector<std::vector<std::byte>> before, other;
      for (const auto& arg : args) before.emplace_back(arg.begin(), arg.end());
      other = before;
      for (std::size_t a = 0; a < args.size(); ++a)
        for (std::size_t b = 0; b < other[a].size(); ++b)
          if (!touched(a, b, false)) other[a][b] = static_cast<std::byte>(random());
      const std::vector<std::vector<std::byte>> changed = other;
      For part = *phase;
      part.begin = phase->begin + tasks * i / n;
      part.end = phase->begin + tasks * (i + 1) / n;
      k.body = {Stmt{part}};
      HEDDLE_TRY(interpret(k, args));
      HEDDLE_TRY(interpret(k, {other.begin(), other.end()}));
      for (std::size_t a = 0; a < args.size(); ++a)
        for (std::size_t b = 0; b < args[a].size(); ++b) {
          const bool written = args[a][b] != before[a][b] || other[a][b] != changed[a][b];
          if (written && !touched(a, b, true))
            return fail("share {} of {}: byte {} of argument {} is written", i, n, b, a);
          if (written && args[a][b] != other[a][b])
            return fail("share {} of {}: byte {} of argument {} depends on more", i, n, b, a);
        }
    }
  }
  return Ok{};
}

}  // namespace heddle::kernel
