// Tensor-core operations of one warp (sm_80 and up). Fragments are those of the PTX manual, section
// "Matrix fragments for mma.m16n8k16": lane 4r+c holds rows r and r+8.
#pragma once

namespace hd {

#ifndef HEDDLE_EMULATE
/// Loads four (two) 8x8 matrices of 16-bit elements from shared memory: lane 8i+j brings the address
/// of row j of matrix i (16 bytes, 16-byte aligned); register i gets its part of matrix i.
HD_FN void load_matrix_x4(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
HD_FN void load_matrix_x2(u32 (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
/// The same, each matrix transposed.
HD_FN void load_matrix_x4_transposed(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
HD_FN void load_matrix_x2_transposed(u32 (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}

/// d[16,8] += a[16,16] · b[16,8] (b by columns), f32 accumulation.
HD_FN void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
HD_FN void mma_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// d[16,8] += a[16,8] · b[8,8] on tf32 values (see to_tf32; the low 13 bits of others are dropped).
HD_FN void mma_tf32(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

HD_FN void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], bf16) { mma_bf16(d, a, b); }
HD_FN void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], f16) { mma_f16(d, a, b); }

/// A 16 x 16 fragment of 16-bit elements, (r, x) at r * kRow + x * kStep; one stride is 1, the other
/// and `p` are aligned to 16 bytes.
template <int kRow, int kStep, class T>
HD_FN void load_fragment_a(u32 (&a)[4], const T* p) {
  const int l = lane();
  if constexpr (kStep == 1)
    load_matrix_x4(a, p + (l & 15) * kRow + (l >> 4) * 8);
  else
    load_matrix_x4_transposed(a, p + ((l & 7) + (l >> 4) * 8) * kStep + (l >> 3 & 1) * 8);
}
/// Columns of b: kColumns is 16 (both fragments) or 8 (the first).
template <int kColumns, int kRow, int kStep, class T>
HD_FN void load_fragment_b(u32 (&first)[2], u32 (&second)[2], const T* p) {
  const int l = kColumns == 16 ? lane() : lane() & 15;
  const T* at = kStep == 1 ? p + ((l & 7) + (l >> 4) * 8) * kRow + (l >> 3 & 1) * 8
                           : p + (l & 15) * kStep + (l >> 4) * 8;
  if constexpr (kColumns == 16) {
    u32 b[4];
    if constexpr (kStep == 1)
      load_matrix_x4(b, at);
    else
      load_matrix_x4_transposed(b, at);
    first[0] = b[0], first[1] = b[1], second[0] = b[2], second[1] = b[3];
  } else if constexpr (kStep == 1) {
    load_matrix_x2(first, at);
  } else {
    load_matrix_x2_transposed(first, at);
  }
}

/// acc += a * b (kernel IR's mma): the warp's kTilesM x kTilesN tiles of 16 x 8, k elements long.
template <int kTilesM, int kTilesN, int kDepth, int kWarpsN, int kRowA, int kStepA, int kRowB, int kStepB,
          class T>
HD_FN void multiply_tiles(float (&acc)[kTilesM * kTilesN * 4], const T* a, const T* b) {
  const T* pa = a + (warp() / kWarpsN) * (kTilesM * 16 * kRowA);
  const T* pb = b + (warp() % kWarpsN) * (kTilesN * 8 * kRowB);
  constexpr bool kTf32 = kSame<T, float>;
  constexpr int kStep = kTf32 ? 8 : 16;
  u32 fa[kTilesM][4], fb[kTilesN + 1][2];
  HD_UNROLL
  for (int k = 0; k < kDepth; k += kStep) {
    if constexpr (kTf32) {
      const int r = lane() >> 2, x = k + (lane() & 3);
      HD_UNROLL
      for (int i = 0; i < kTilesM * 4; ++i)
        fa[i / 4][i % 4] = to_tf32(pa[(i / 4 * 16 + r + i % 2 * 8) * kRowA + (x + i % 4 / 2 * 4) * kStepA]);
      HD_UNROLL
      for (int j = 0; j < kTilesN * 2; ++j)
        fb[j / 2][j % 2] = to_tf32(pb[(j / 2 * 8 + r) * kRowB + (x + j % 2 * 4) * kStepB]);
    } else {
      HD_UNROLL
      for (int i = 0; i < kTilesM; ++i)
        load_fragment_a<kRowA, kStepA>(fa[i], pa + i * 16 * kRowA + k * kStepA);
      HD_UNROLL
      for (int j = 0; j + 1 < kTilesN; j += 2)
        load_fragment_b<16, kRowB, kStepB>(fb[j], fb[j + 1], pb + j * 8 * kRowB + k * kStepB);
      if constexpr (kTilesN % 2 == 1)
        load_fragment_b<8, kRowB, kStepB>(fb[kTilesN - 1], fb[kTilesN],
                                          pb + (kTilesN - 1) * 8 * kRowB + k * kStepB);
    }
    HD_UNROLL
    for (int i = 0; i < kTilesM; ++i) {
      HD_UNROLL
      for (int j = 0; j < kTilesN; ++j) {
        float(&d)[4] = reinterpret_cast<float(&)[4]>(acc[(i * kTilesN + j) * 4]);
        if constexpr (kTf32)
          mma_tf32(d, fa[i], fb[j]);
        else
          mma(d, fa[i], fb[j], T{});
      }
    }
  }
}

}  // namespace hd
