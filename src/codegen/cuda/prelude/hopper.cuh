// Hopper (sm_90a): mbarriers, the tensor memory accelerator, warpgroup matrix products, clusters.
// Clusters and mbarriers need sm_90; on older chips these helpers do not exist.
#pragma once

namespace hd {

/// What cuTensorMapEncodeTiled fills in: a kernel takes it as
/// `const __grid_constant__ hd::TensorMap` and passes its address on.
struct alignas(64) TensorMap {
  u64 opaque[16];
};
using Mbarrier = u64;  ///< in shared memory

#if defined(HEDDLE_EMULATE)
#define HD_HOPPER 1
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HD_HOPPER 1

/// One thread initialises a barrier for `count` arrivals a phase, then mbarrier_fence, then all meet.
HD_FN void mbarrier_init(Mbarrier* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
HD_FN void mbarrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
HD_FN void mbarrier_arrive(Mbarrier* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
/// Arrives and announces `bytes` of asynchronous copies that complete this phase.
HD_FN void mbarrier_arrive_expect(Mbarrier* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
               : "memory");
}
/// Waits until the phase of parity `parity` is complete (the first phase has parity 0; waiting for
/// parity 1 on a fresh barrier returns at once). Traps after seconds.
HD_FN void mbarrier_wait(Mbarrier* b, int parity) {
  u32 done = 0, spins = 0;
  while (true) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(b)), "r"(parity)
        : "memory");
    if (done) return;
    if (++spins == 1u << 24) trap();
  }
}

/// Copies a tile of `map` that begins at the coordinates (elements; innermost first; parts outside
/// read as zero) to shared memory (128-byte aligned, 1024 with 128-byte swizzle); `b` gets the bytes.
HD_FN void tma_load_2d(void* shared, const TensorMap* map, int x, int y, Mbarrier* b) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(b))
      : "memory");
}
HD_FN void tma_load_3d(void* shared, const TensorMap* map, int x, int y, int z, Mbarrier* b) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4}], [%5];" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(b))
      : "memory");
}
HD_FN void tma_load_4d(void* shared, const TensorMap* map, int x, int y, int z, int w, Mbarrier* b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4, %5}], [%6];" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(b))
      : "memory");
}
/// Copies `bytes` (a multiple of 16) of global memory as they lie to shared memory, both aligned to 16
/// bytes; `b` gets the bytes.
HD_FN void bulk_load(void* shared, const void* global, int bytes, Mbarrier* b) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(b))
      : "memory");
}
/// Asks for the same in L2.
HD_FN void bulk_prefetch(const void* global, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
/// Loads the descriptor itself ahead of its first use.
HD_FN void tma_prefetch(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// What this thread wrote to shared memory with ordinary stores is seen by asynchronous readers
/// (wgmma, TMA) after this and a barrier.
HD_FN void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Moves registers between warpgroups: all warps of a warpgroup execute it.
template <int kRegisters>
HD_FN void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
HD_FN void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Before the first product that reads or writes registers touched since: orders them.
HD_FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
HD_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most kLeft groups are in flight; before, accumulators must not be touched.
template <int kLeft>
HD_FN void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

/// The dimensions of the cluster: this block's rank in it and its number of blocks.
HD_FN u32 cluster_rank() {
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
HD_FN u32 cluster_size() {
  u32 n;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
  return n;
}
/// All threads of all blocks of the cluster meet; what they wrote to shared memory of any of the
/// blocks is seen. Arrive and wait are its halves.
HD_FN void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
HD_FN void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
HD_FN void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
/// The same variable in the shared memory of block `rank`. A block must not end while others access
/// its shared memory: end with cluster_sync.
template <class T>
HD_FN T* cluster_map(T* shared, u32 rank) {
  u64 out;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(out) : "l"(shared), "r"(rank));
  return reinterpret_cast<T*>(out);
}

/// Programmatic dependent launch: wait for the kernel before, let the one after start.
HD_FN void dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
HD_FN void dependents_launch() { asm volatile("griddepcontrol.launch_dependents;"); }
#endif

#ifdef HD_HOPPER
/// Matrix descriptor of an operand in shared memory whose rows are 128 bytes (64 16-bit elements
/// along k) with 128-byte swizzle, as TMA writes it: 8-row groups 1024 bytes apart. `start` is 1024-byte
/// aligned but for a step along k of a multiple of 32 bytes.
HD_FN u64 descriptor_128(const void* start) {
  return static_cast<u64>((shared_address(start) & 0x3ffff) >> 4) | u64(1) << 16 | u64(1024 >> 4) << 32 |
         u64(1) << 62;
}
#endif

// d[64, N] += a[64, K] · b[N, K]ᵀ by a warpgroup: a and b as descriptors, both contiguous along k.
// Thread t of the warpgroup, warp w, lane 4r+c, holds d[16w + r + 8i][8j + 2c + e] in d[4j + 2i + e].
#if defined(HD_HOPPER) && !defined(HEDDLE_EMULATE)
template <int N>
struct Wgmma;
// tf32 has no transposition flags.
#define HD_WGMMA_KINDS                             \
  HD_WGMMA(bf16, "k16", "bf16.bf16", ", 0, 0")     \
  HD_WGMMA(f16, "k16", "f16.f16", ", 0, 0")        \
  HD_WGMMA(tf32, "k8", "tf32.tf32", "")
template <>
struct Wgmma<8> {
#define HD_WGMMA(name, shape, types, tail)                                    \
  static HD_FN void name(float (&d)[4], u64 a, u64 b) {                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n8" shape ".f32." types " {" \
                 "%0, %1, %2, %3" \
                 "}, %4, %5, 1, 1, 1" tail ";"                          \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                 : "l"(a), "l"(b));                                          \
  }
  HD_WGMMA_KINDS
#undef HD_WGMMA
};
template <>
struct Wgmma<16> {
#define HD_WGMMA(name, shape, types, tail)                                    \
  static HD_FN void name(float (&d)[8], u64 a, u64 b) {                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n16" shape ".f32." types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7" \
                 "}, %8, %9, 1, 1, 1" tail ";"                          \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),  \
                   "+f"(d[6]), "+f"(d[7]) \
                 : "l"(a), "l"(b));                                          \
  }
  HD_WGMMA_KINDS
#undef HD_WGMMA
};
template <>
struct Wgmma<32> {
#define HD_WGMMA(name, shape, types, tail)                                    \
  static HD_FN void name(float (&d)[16], u64 a, u64 b) {                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32" shape ".f32." types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
                 "}, %16, %17, 1, 1, 1" tail ";"                          \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),  \
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),  \
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]) \
                 : "l"(a), "l"(b));                                          \
  }
  HD_WGMMA_KINDS
#undef HD_WGMMA
};
template <>
struct Wgmma<64> {
#define HD_WGMMA(name, shape, types, tail)                                    \
  static HD_FN void name(float (&d)[32], u64 a, u64 b) {                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64" shape ".f32." types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
                 "}, %32, %33, 1, 1, 1" tail ";"                          \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),  \
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),  \
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),  \
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
                   "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]),  \
                   "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) \
                 : "l"(a), "l"(b));                                          \
  }
  HD_WGMMA_KINDS
#undef HD_WGMMA
};
template <>
struct Wgmma<96> {
#define HD_WGMMA(name, shape, types, tail)                                    \
  static HD_FN void name(float (&d)[48], u64 a, u64 b) {                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n96" shape ".f32." types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
                 "%47" \
                 "}, %48, %49, 1, 1, 1" tail ";"                          \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),  \
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),  \
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),  \
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
                   "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]),  \
                   "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),  \
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),  \
                   "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),  \
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]),  \
                   "+f"(d[47]) \
                 : "l"(a), "l"(b));                                          \
  }
  HD_WGMMA_KINDS
#undef HD_WGMMA
};
template <>
struct Wgmma<128> {
#define HD_WGMMA(name, shape, types, tail)                                    \
  static HD_FN void name(float (&d)[64], u64 a, u64 b) {                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128" shape ".f32." types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
                 "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
                 "%62, %63" \
                 "}, %64, %65, 1, 1, 1" tail ";"                          \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),  \
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),  \
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),  \
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
                   "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]),  \
                   "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),  \
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),  \
                   "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),  \
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]),  \
                   "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),  \
                   "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),  \
                   "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]),  \
                   "+f"(d[62]), "+f"(d[63]) \
                 : "l"(a), "l"(b));                                          \
  }
  HD_WGMMA_KINDS
#undef HD_WGMMA
};
template <>
struct Wgmma<192> {
#define HD_WGMMA(name, shape, types, tail)                                    \
  static HD_FN void name(float (&d)[96], u64 a, u64 b) {                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n192" shape ".f32." types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
                 "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
                 "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, " \
                 "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, " \
                 "%92, %93, %94, %95" \
                 "}, %96, %97, 1, 1, 1" tail ";"                          \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),  \
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),  \
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),  \
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
                   "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]),  \
                   "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),  \
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),  \
                   "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),  \
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]),  \
                   "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),  \
                   "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),  \
                   "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]),  \
                   "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]),  \
                   "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),  \
                   "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),  \
                   "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]),  \
                   "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]),  \
                   "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]),  \
                   "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]) \
                 : "l"(a), "l"(b));                                          \
  }
  HD_WGMMA_KINDS
#undef HD_WGMMA
};
template <>
struct Wgmma<256> {
#define HD_WGMMA(name, shape, types, tail)                                    \
  static HD_FN void name(float (&d)[128], u64 a, u64 b) {                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256" shape ".f32." types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
                 "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
                 "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, " \
                 "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, " \
                 "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, " \
                 "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, " \
                 "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127" \
                 "}, %128, %129, 1, 1, 1" tail ";"                          \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),  \
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),  \
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),  \
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
                   "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]),  \
                   "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),  \
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),  \
                   "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),  \
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]),  \
                   "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),  \
                   "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),  \
                   "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]),  \
                   "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]),  \
                   "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),  \
                   "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),  \
                   "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]),  \
                   "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]),  \
                   "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]),  \
                   "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]),  \
                   "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]),  \
                   "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]),  \
                   "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),  \
                   "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]),  \
                   "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]),  \
                   "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]),  \
                   "+f"(d[127]) \
                 : "l"(a), "l"(b));                                          \
  }
  HD_WGMMA_KINDS
#undef HD_WGMMA
};
#undef HD_WGMMA_KINDS
#endif

#if defined(HD_HOPPER) && !defined(HEDDLE_EMULATE)
template <int N>
HD_FN void wgmma_bf16(float (&d)[N / 2], u64 a, u64 b) {
  Wgmma<N>::bf16(d, a, b);
}
template <int N>
HD_FN void wgmma_f16(float (&d)[N / 2], u64 a, u64 b) {
  Wgmma<N>::f16(d, a, b);
}
/// K is 8: 32 bytes, as for the 16-bit kinds.
template <int N>
HD_FN void wgmma_tf32(float (&d)[N / 2], u64 a, u64 b) {
  Wgmma<N>::tf32(d, a, b);
}
#endif

#ifdef HD_HOPPER
/// Descriptor of an operand without swizzle: 8 rows of 16 bytes lie side by side, groups of 8 rows
/// follow each other, and 8 elements further along k are kStep elements away (kernel IR's mma).
template <int kStep>
HD_FN u64 descriptor_rows(const void* start) {
  return static_cast<u64>((shared_address(start) & 0x3ffff) >> 4) | u64(kStep * 2 >> 4) << 16 | u64(128 >> 4) << 32;
}
/// acc += a * b by each warpgroup with 64 rows of its own, between wgmma_fence and wgmma_commit.
template <int kTilesN, int kDepth, int kStepA, int kStepB, class T>
HD_FN void start_products(float (&acc)[kTilesN * 4], const T* a, const T* b) {
  const T* rows = a + warp() / 4 * (64 * 8);
  HD_UNROLL
  for (int k = 0; k < kDepth; k += 16) {
    const u64 da = descriptor_rows<kStepA>(rows + k / 8 * kStepA);
    const u64 db = descriptor_rows<kStepB>(b + k / 8 * kStepB);
    if constexpr (kSame<T, bf16>)
      wgmma_bf16<kTilesN * 8>(acc, da, db);
    else
      wgmma_f16<kTilesN * 8>(acc, da, db);
  }
}
/// The same for tiles that tma_load has written with 128-byte swizzle: rows of 64 elements.
template <int kTilesN, class T>
HD_FN void start_tile_products(float (&acc)[kTilesN * 4], const T* a, const T* b) {
  const T* rows = a + warp() / 4 * (64 * 64);
  HD_UNROLL
  for (int k = 0; k < 64; k += 16) {
    if constexpr (kSame<T, bf16>)
      wgmma_bf16<kTilesN * 8>(acc, descriptor_128(rows + k), descriptor_128(b + k));
    else
      wgmma_f16<kTilesN * 8>(acc, descriptor_128(rows + k), descriptor_128(b + k));
  }
}
#endif

}  // namespace hd
