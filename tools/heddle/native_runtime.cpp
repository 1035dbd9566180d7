#include "native.h"
#include "support/dtype.h"

namespace heddle::tool {

// The numbers in DISPATCH below.
static_assert(static_cast<int>(DType::f64) == 1 && static_cast<int>(DType::i8) == 4 &&
              static_cast<int>(DType::u8) == 8 && static_cast<int>(DType::b1) == 12);

// What kernels call (codegen/cpu/symbols.cpp), beside libm's functions.
const char kNativeRoutines[] = R"(
/* What storage types need on machines without instructions for them. */
__attribute__((weak)) float heddle_f16_to_f32(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  union { uint32_t bits; float value; } x;
  if (exponent == 0) {
    x.value = (float)mantissa * 0x1p-24f;
    x.bits |= sign;
  } else {
    x.bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  }
  return x.value;
}
__attribute__((weak)) uint16_t heddle_f32_to_f16(float f) {
  union { float value; uint32_t bits; } x = {f};
  const uint16_t sign = (uint16_t)(x.bits >> 16 & 0x8000);
  x.bits &= 0x7fffffff;
  if (x.bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (x.bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (x.bits < 0x38800000) { /* subnormal: the addition rounds */
    x.value += 0.5f;
    return (uint16_t)(sign | (x.bits - 0x3f000000));
  }
  x.bits += 0xc8000fff + (x.bits >> 13 & 1);
  return (uint16_t)(sign | x.bits >> 13);
}

__attribute__((weak)) void heddle_permit_tiles(void) {
#ifdef __x86_64__
  static atomic_int permitted;
  if (atomic_load_explicit(&permitted, memory_order_relaxed)) return;
  if (syscall(SYS_arch_prctl, 0x1023, 18) == 0) {  /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    atomic_store(&permitted, 1);
    return;
  }
#endif
  fputs("this code multiplies in tile registers (AMX), which this machine does not offer\n", stderr);
  abort();
}
__attribute__((weak)) uint64_t heddle_upow(uint64_t base, uint64_t exponent) {
  uint64_t result = 1;
  for (; exponent; exponent >>= 1, base *= base)
    if (exponent & 1) result *= base;
  return result;
}
__attribute__((weak)) int64_t heddle_ipow(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  return (int64_t)heddle_upow((uint64_t)base, (uint64_t)exponent);
}

/* Positions that sort keys stably (equal keys by position); a NaN is the largest: a heap sort. */
#define DISPATCH(CASE) CASE(0, float) CASE(1, double) CASE(4, int8_t) CASE(5, int16_t) \
    CASE(6, int32_t) CASE(7, int64_t) CASE(8, uint8_t) CASE(9, uint16_t) CASE(10, uint32_t) \
    CASE(11, uint64_t) CASE(12, uint8_t)
#define SORT(number, T)                                                                           \
  static int before_##number(const T* keys, int64_t a, int64_t b, int64_t descending) {          \
    const T x = keys[a], y = keys[b];                                                             \
    const int order = x != x || y != y ? (x != x) - (y != y) : (x > y) - (x < y);                 \
    return order ? (descending ? order > 0 : order < 0) : a < b;                                  \
  }                                                                                               \
  static void sink_##number(const T* keys, int64_t* p, int64_t at, int64_t n, int64_t down) {    \
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {                                   \
      if (child + 1 < n && before_##number(keys, p[child], p[child + 1], down)) ++child;          \
      if (!before_##number(keys, p[at], p[child], down)) return;                                  \
      const int64_t swapped = p[at];                                                              \
      p[at] = p[child];                                                                           \
      p[child] = swapped;                                                                         \
    }                                                                                             \
  }                                                                                               \
  static void sort_##number(const T* keys, int64_t* p, int64_t n, int64_t down) {                \
    for (int64_t i = n / 2; i-- > 0;) sink_##number(keys, p, i, n, down);                         \
    for (int64_t last = n - 1; last > 0; --last) {                                                \
      const int64_t largest = p[0];                                                               \
      p[0] = p[last];                                                                             \
      p[last] = largest;                                                                          \
      sink_##number(keys, p, 0, last, down);                                                      \
    }                                                                                             \
  }
DISPATCH(SORT)
__attribute__((weak)) void heddle_sort(const void* keys, int64_t* positions, int64_t n,
                                       int64_t count, int64_t descending, int64_t type) {
  (void)count; /* all of them */
  for (int64_t i = 0; i < n; ++i) positions[i] = i;
#define CASE(number, T) if (type == number) sort_##number(keys, positions, n, descending);
  DISPATCH(CASE)
}
)";

// NAME(x) is the public name of x; phases, slots, first_slot, ports, sizes and `constants` are
// tables in front. One region a run: each thread takes its share of a phase's tasks, a barrier ends
// the phase.
const char kNativeRuntime[] = R"(
struct NAME(session) {
  int threads;
  int64_t scratch_stride;
  unsigned char *arena, *scratch;
  void** args;
  pthread_t* workers;
  struct worker* starts;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  atomic_uint epoch, generation;
  atomic_int arrived, stop;
};
typedef struct NAME(session) session;
struct worker { session* s; int thread; };

static void barrier(session* s) {
  const unsigned generation = atomic_load(&s->generation);
  if (s->threads == 1) return;
  if (atomic_fetch_add(&s->arrived, 1) + 1 == s->threads) {
    atomic_store(&s->arrived, 0);
    atomic_fetch_add(&s->generation, 1);
    return;
  }
  for (unsigned spins = 0; atomic_load(&s->generation) == generation; ++spins)
    if (spins > 4000) sched_yield();
}

// Denormals are zeros meanwhile, if they may: multiplying one takes an Intel core 150 cycles.
static void work(session* s, int thread) {
#if defined(__x86_64__)
  const unsigned state = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(DENORMALS ? 0x1f80 : 0x9fc0);
#endif
  for (int p = 0; p < PHASES; ++p) {
    const int64_t first = phases[p].tasks * thread / s->threads;
    const int64_t last = phases[p].tasks * (thread + 1) / s->threads;
    if (first < last)
      phases[p].run(s->args + first_slot[phases[p].launch], first, last,
                    s->scratch + s->scratch_stride * thread);
    barrier(s);
  }
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(state);
#endif
}

static void* wait_for_work(void* start) {
  session* s = ((struct worker*)start)->s;
  for (unsigned seen = 0;;) {
    for (int spins = 0; spins < 20000 && atomic_load(&s->epoch) == seen; ++spins) {}
    pthread_mutex_lock(&s->lock);
    while (atomic_load(&s->epoch) == seen) pthread_cond_wait(&s->wake, &s->lock);
    seen = atomic_load(&s->epoch);
    pthread_mutex_unlock(&s->lock);
    if (atomic_load(&s->stop)) return NULL;
    work(s, ((struct worker*)start)->thread);
  }
}

static void start_epoch(session* s) {
  pthread_mutex_lock(&s->lock);
  atomic_fetch_add(&s->epoch, 1);
  pthread_cond_broadcast(&s->wake);
  pthread_mutex_unlock(&s->lock);
}

static void* aligned(int64_t bytes) { return aligned_alloc(64, (size_t)(bytes + 64) / 64 * 64); }

NAME(session)* NAME(create)(int threads) {
  session* s = calloc(1, sizeof *s);
  if (!s) return NULL;
  if (threads < 1) threads = 1;
  s->scratch_stride = (SCRATCH_BYTES + 127) / 64 * 64;
  s->arena = aligned(ARENA_BYTES);
  s->scratch = aligned(s->scratch_stride * threads);
  s->args = calloc(SLOTS + 1, sizeof *s->args);
  s->workers = calloc((size_t)threads, sizeof *s->workers);
  s->starts = calloc((size_t)threads, sizeof *s->starts);
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->wake, NULL);
  s->threads = 1;
  if (!s->arena || !s->scratch || !s->args || !s->workers || !s->starts) {
    NAME(destroy)(s);
    return NULL;
  }
  for (int i = 0; i < SLOTS; ++i) {
    if (slots[i].kind == ARENA) s->args[i] = s->arena + slots[i].index;
    if (slots[i].kind == CONSTANT) s->args[i] = (void*)(constants + slots[i].index);
  }
  for (; s->threads < threads; ++s->threads) {
    struct worker* start = &s->starts[s->threads];
    start->s = s;
    start->thread = s->threads;
    if (pthread_create(&s->workers[s->threads], NULL, wait_for_work, start) != 0) {
      NAME(destroy)(s);
      return NULL;
    }
  }
  return s;
}

int NAME(run)(NAME(session)* s, const void* const* inputs, void* const* outputs) {
  for (int i = 0; i < NAME(input_count); ++i)
    if ((uintptr_t)inputs[i] % 64) return -1;
  for (int i = 0; i < NAME(output_count); ++i)
    if ((uintptr_t)outputs[i] % 64) return -1;
  for (int i = 0; i < SLOTS; ++i) {
    if (slots[i].kind == INPUT) s->args[i] = (void*)inputs[slots[i].index];
    if (slots[i].kind == OUTPUT) s->args[i] = outputs[slots[i].index];
  }
  if (s->threads > 1) start_epoch(s);
  work(s, 0);
  return 0;
}

void NAME(destroy)(NAME(session)* s) {
  if (!s) return;
  atomic_store(&s->stop, 1);
  if (s->threads > 1) start_epoch(s);
  for (int i = 1; i < s->threads; ++i) pthread_join(s->workers[i], NULL);
  pthread_cond_destroy(&s->wake);
  pthread_mutex_destroy(&s->lock);
  free(s->starts);
  free(s->workers);
  free(s->args);
  free(s->scratch);
  free(s->arena);
  free(s);
}
)";

const char kNativeMain[] = R"(
static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}
static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}
/* Numbers in [-1, 1) for floats, 0 or 1 for the rest. */
static void fill(unsigned char* data, const NAME(port)* port) {
  uint32_t state = 1;
  const size_t each = port->bytes / (port->count ? port->count : 1);
  for (size_t i = 0; i < port->count; ++i) {
    state = state * 1664525u + 1013904223u;
    const float real = (float)(state >> 8) * 0x1p-23f - 1;
    const double wide = real;
    if (!strcmp(port->type, "f32")) memcpy(data + i * each, &real, 4);
    else if (!strcmp(port->type, "f64")) memcpy(data + i * each, &wide, 8);
    else if (!strcmp(port->type, "bf16")) memcpy(data + i * each, (const char*)&real + 2, 2);
    else if (!strcmp(port->type, "f16")) {
      const uint16_t half = heddle_f32_to_f16(real);
      memcpy(data + i * each, &half, 2);
    } else data[i * each] = (unsigned char)(state >> 31);
  }
}
int main(int argc, char** argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : 1;
  const double seconds = argc > 2 ? atof(argv[2]) : 2;
  if (argc > 3 || threads < 1 || !(seconds > 0)) {
    fprintf(stderr, "usage: %s [THREADS [SECONDS]]: times the model on made-up inputs\n", argv[0]);
    return 2;
  }
  const void* inputs[NAME(input_count) + 1];
  void* outputs[NAME(output_count) + 1];
  NAME(session)* s = NAME(create)(threads);
  int missing = !s;
  for (int i = 0; i < NAME(input_count); ++i) {
    void* data = aligned((int64_t)NAME(inputs)[i].bytes);
    if (data) memset(data, 0, NAME(inputs)[i].bytes), fill(data, &NAME(inputs)[i]);
    missing |= !(inputs[i] = data);
  }
  for (int i = 0; i < NAME(output_count); ++i)
    missing |= !(outputs[i] = aligned((int64_t)NAME(outputs)[i].bytes));
  enum { MOST = 100000 };
  double* ms = calloc(MOST, sizeof *ms);
  if (missing || !ms) {
    fprintf(stderr, "out of memory\n");
    return 5;
  }
  NAME(run)(s, inputs, outputs);
  int runs = 0;
  for (const double end = now_ms() + 1e3 * seconds; runs == 0 || (runs < MOST && now_ms() < end);) {
    const double start = now_ms();
    NAME(run)(s, inputs, outputs);
    ms[runs++] = now_ms() - start;
  }
  qsort(ms, (size_t)runs, sizeof *ms, ascending);
  printf("%d runs, %d threads: median %.4f ms, min %.4f ms, max %.4f ms\n", runs, threads, ms[runs / 2],
         ms[0], ms[runs - 1]);
  NAME(destroy)(s);
  return 0;
}
)";

}  // namespace heddle::tool
