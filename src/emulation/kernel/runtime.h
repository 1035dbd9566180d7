// What emulated kernels and the emulator share: compiled into both, so plain data only.
#pragma once

namespace emu {

struct Dim {
  unsigned x, y, z;
};
/// Where a helper was called; __builtin_LINE in default arguments gives the caller's line.
struct Site {
  const char* file;
  int line;
};

/// What the running thread knows of itself.
struct Self {
  Dim thread, block, threads, blocks;
  unsigned char* dynamic_shared;
  int lane;
  unsigned cluster_rank, cluster_size;
};

/// Where the lanes of a warp meet: what each brought, and which there are.
struct Meeting {
  struct Slot {
    alignas(16) unsigned char bytes[64];
  };
  Slot lanes[32];
  unsigned present;
};

enum Operation { kShuffle = 1, kBallot, kWarpSync, kLoadMatrix, kMultiply };
enum Order { kRelaxed = 0, kAcquire = 1, kRelease = 2, kAcqRel = 3 };
enum Access { kRead = 0, kWrite = 1, kUpdate = 2 };
enum Element { kBf16, kF16, kTf32 };

/// The emulator's functions, given to a module when it is loaded: modules need no symbol of the
/// program that loads them.
struct Runtime {
  void (*fail)(const char* what);                   ///< ends the launch; does not return
  void (*barrier)(int id, int threads, Site site);  ///< threads 0: all of the block
  void (*arrive)(int id, int threads, Site site);
  /// The lanes of a warp meet: each brings `bytes`, and sees what all brought.
  const Meeting* (*exchange)(int operation, const void* in, int bytes, Site site);
  /// Before an atomic access: a scheduling point where another thread may have to run first.
  void (*atomic)(const void* at, int bytes, int access, int order);
  void (*fence)(int device);
  void (*spin)();  ///< called by loads that poll
  void (*access)(const void* at, long bytes, int write, const void* pc);  ///< instrumented code
  void (*undefined)(const char* what, const void* pc);

  unsigned (*shared_address)(const void* p);
  void (*copy_async)(void* shared, const void* global, int bytes, int valid);
  void (*copy_commit)();
  void (*copy_wait)(int left);
  void (*load_matrix)(unsigned* r, int count, const void* row, int transposed, Site site);
  void (*multiply)(int element, float* d, const unsigned* a, const unsigned* b, Site site);

  void (*cluster_arrive)(Site site);
  void (*cluster_wait)(Site site);
  void* (*cluster_map)(void* shared, unsigned rank);
  void (*mbarrier_init)(void* barrier, int count);
  void (*mbarrier_fence)();
  void (*mbarrier_arrive)(void* barrier, int bytes);
  void (*mbarrier_wait)(void* barrier, int parity, Site site);
  void (*tma_load)(void* shared, const void* map, const int* at, int rank, void* barrier);
  void (*bulk_load)(void* shared, const void* global, int bytes, void* barrier);
  void (*bulk_prefetch)(const void* global, int bytes);
  void (*fence_async)();
  void (*products_fence)();
  void (*products_commit)();
  void (*products_wait)(int left, Site site);
  /// d[64, n] += a b^T of a warpgroup.
  void (*product)(int element, int n, float* d, unsigned long long a, unsigned long long b,
                  Site site);
};

/// A kernel of a module.
struct Entry {
  const char* symbol;
  void (*call)(void** arguments);
  const unsigned long* parameter_bytes;
  int parameters, max_threads;
};
/// What a module tells the emulator.
struct ModuleInfo {
  const Entry* entries;
  int entry_count;
  unsigned char *shared_begin, *shared_end;  ///< its static shared variables
  const Self** self;                         ///< set before a thread runs
  Runtime* runtime;
};

}  // namespace emu
