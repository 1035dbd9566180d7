#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace heddle {

/// While it lives, this thread takes denormal operands for zeros and flushes denormal results to
/// them, if it shall: multiplying one takes an Intel core 150 cycles, and the softmax of scores
/// masked with -100 is full of them. Everything else of the thread's floating-point state is the
/// default, and what it was comes back.
class FlushDenormals {
 public:
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;
#if defined(__x86_64__)
  explicit FlushDenormals(bool flush) : before_(_mm_getcsr()) {
    constexpr unsigned kDefault = 0x1f80, kFlush = 0x8000, kTakenForZeros = 0x40;
    _mm_setcsr(flush ? kDefault | kFlush | kTakenForZeros : kDefault);
  }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  explicit FlushDenormals(bool) {}
  ~FlushDenormals() {}
#endif
};

}  // namespace heddle
