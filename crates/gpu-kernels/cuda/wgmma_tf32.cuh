// Products that four warps make as one, of tf32: 64 x 64 x 8, the left operand in registers, the right one by its
// rows, as this instruction takes it only. Fragments: mma.cuh; what products run beside: wgmma.cuh.
//
// A tile of 64 x 64 is two pieces of 64 x 32 as wgmma.cuh describes them, one after the other. The machine without a
// device has its own text of this too.
#pragma once

#include "wgmma.cuh"

static constexpr u32 PANEL_BYTES = 64 * 128;

#if defined(__CUDACC__)

#define GROUP_PRODUCT_TF32                                                                           \
    "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {"                                          \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                         \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "              \
    "{%32, %33, %34, %35}, %36, p, 1, 1;}"

// sums = left times the rows of `right` in their columns 8 step to 8 step + 7, or sums += that.
template <bool ADDS>
__device__ __forceinline__ void group_rows_tf32(float (&sums)[8][4], const u32 (&left)[4], Shared right, u32 step) {
    const u64 b = tile_at(right + step / 4 * PANEL_BYTES) + step % 4 * 2;
    if constexpr (ADDS) {
        asm volatile("{.reg .pred p; setp.eq.u32 p, 1, 1; " GROUP_PRODUCT_TF32
                     : GROUP_SUMS(GROUP_ADD)
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(b));
    } else {
        asm volatile("{.reg .pred p; setp.eq.u32 p, 0, 1; " GROUP_PRODUCT_TF32
                     : GROUP_SUMS(GROUP_SET)
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(b));
    }
}

// sums += left times 160 rows of `right`, which are 128 bytes each, in their columns 8 step to 8 step + 7.
__device__ __forceinline__ void group_add_tf32(float (&sums)[20][4], const u32 (&left)[4], Shared right, u32 step) {
    const u64 b = tile_at(right) + step * 2;
    asm volatile("{.reg .pred p; setp.eq.u32 p, 1, 1; wgmma.mma_async.sync.aligned.m64n160k8.f32.tf32.tf32 "
                 GROUP_NAMES_160 "{%80, %81, %82, %83}, %84, p, 1, 1;}"
                 : GROUP_SUMS_160(GROUP_ADD)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(b));
}

// The same with the left operand in shared memory, 64 rows of 128 bytes.
__device__ __forceinline__ void group_add_tf32(float (&sums)[20][4], Shared left, Shared right, u32 step) {
    const u64 a = tile_at(left) + step * 2, b = tile_at(right) + step * 2;
    asm volatile("{.reg .pred p; setp.eq.u32 p, 1, 1; wgmma.mma_async.sync.aligned.m64n160k8.f32.tf32.tf32 "
                 GROUP_NAMES_160 "%80, %81, p, 1, 1;}"
                 : GROUP_SUMS_160(GROUP_ADD) : "l"(a), "l"(b));
}

// Stores 16 bytes.
__device__ __forceinline__ void store_shared_four(Shared address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 : : "r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

#endif
