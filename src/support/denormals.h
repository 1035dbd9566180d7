#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace heddle {

/// While it lives, this thread takes denormal operands for zeros and flushes denormal results to
/// them: multiplying one takes an Intel core 150 cycles, and the softmax of scores masked with
/// -100 is full of them. Everything else of the thread's floating-point state is the default, and
/// what it was comes back.
class FlushDenormals {
 public:
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;
#if defined(__x86_64__)
  FlushDenormals() : before_(_mm_getcsr()) {
    constexpr unsigned kDefault = 0x1f80, kFlush = 0x8000, kTakenForZeros = 0x40;
    _mm_setcsr(kDefault | kFlush | kTakenForZeros);
  }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  FlushDenormals() {}
  ~FlushDenormals() {}
#endif
};

}  // namespace heddle
