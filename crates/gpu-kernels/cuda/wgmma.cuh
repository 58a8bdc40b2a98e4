// Products that four warps make as one, on devices of compute capability 9.0: 64 x 64 x 16 of bf16,
// with sums in f32 in the fragments of mma.cuh, each warp having 16 of the 64 rows.
//
// Operands in shared memory are tiles of rows of 128 bytes, of which the pieces of 16 bytes of row
// r are exchanged, piece p lying where p ^ r % 8 would; a tile begins at a multiple of 1024 bytes.
// The machine without a device has its own text of this too.
//
// The products run beside the program: between `group_fence` and `group_wait` nobody touches their
// registers, and no one overwrites their shared memory.
#pragma once

#include "mma.cuh"

// Where piece `piece` of row `row` of a tile lies.
__device__ __forceinline__ u32 exchanged_piece(u32 row, u32 piece) {
    return row * 128 + (piece ^ row % 8) * 16;
}

#if defined(__CUDACC__)

// Makes what this thread wrote to shared memory seen by products that begin after the next barrier.
__device__ __forceinline__ void group_publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Before products that read registers written since.
__device__ __forceinline__ void group_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Waits for all products.
__device__ __forceinline__ void group_wait() {
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// Ends a set of products, and waits for all sets but the last SETS.
__device__ __forceinline__ void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <u32 SETS>
__device__ __forceinline__ void group_wait_but() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(SETS) : "memory");
}

// What the hardware calls the tile from `address` on: 8 rows take 1024 bytes, pieces are exchanged
// within 128. What is added counts in units of 16 bytes.
static constexpr u64 TILE_KIND = (u64)1 << 62 | (u64)(1024 >> 4) << 32 | (u64)1 << 16;
__device__ __forceinline__ u64 tile_at(Shared address) {
    return TILE_KIND | (u64)((address & 0x3FFFFu) >> 4);
}

// The 32 sums as operands, and what all products begin with.
#define GROUP_SUMS(KIND)                                                                              \
    KIND(sums[0][0]), KIND(sums[0][1]), KIND(sums[0][2]), KIND(sums[0][3]),                           \
    KIND(sums[1][0]), KIND(sums[1][1]), KIND(sums[1][2]), KIND(sums[1][3]),                           \
    KIND(sums[2][0]), KIND(sums[2][1]), KIND(sums[2][2]), KIND(sums[2][3]),                           \
    KIND(sums[3][0]), KIND(sums[3][1]), KIND(sums[3][2]), KIND(sums[3][3]),                           \
    KIND(sums[4][0]), KIND(sums[4][1]), KIND(sums[4][2]), KIND(sums[4][3]),                           \
    KIND(sums[5][0]), KIND(sums[5][1]), KIND(sums[5][2]), KIND(sums[5][3]),                           \
    KIND(sums[6][0]), KIND(sums[6][1]), KIND(sums[6][2]), KIND(sums[6][3]),                           \
    KIND(sums[7][0]), KIND(sums[7][1]), KIND(sums[7][2]), KIND(sums[7][3])
#define GROUP_SET(NUMBER) "=f"(NUMBER)
#define GROUP_ADD(NUMBER) "+f"(NUMBER)
#define GROUP_PRODUCT                                                                                \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"                                         \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                         \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

// The same for 160 columns, and how an instruction names them.
#define GROUP_ROW(KIND, I) KIND(sums[I][0]), KIND(sums[I][1]), KIND(sums[I][2]), KIND(sums[I][3])
#define GROUP_SUMS_160(KIND)                                                                          \
    GROUP_ROW(KIND, 0), GROUP_ROW(KIND, 1), GROUP_ROW(KIND, 2), GROUP_ROW(KIND, 3),                   \
    GROUP_ROW(KIND, 4), GROUP_ROW(KIND, 5), GROUP_ROW(KIND, 6), GROUP_ROW(KIND, 7),                   \
    GROUP_ROW(KIND, 8), GROUP_ROW(KIND, 9), GROUP_ROW(KIND, 10), GROUP_ROW(KIND, 11),                 \
    GROUP_ROW(KIND, 12), GROUP_ROW(KIND, 13), GROUP_ROW(KIND, 14), GROUP_ROW(KIND, 15),               \
    GROUP_ROW(KIND, 16), GROUP_ROW(KIND, 17), GROUP_ROW(KIND, 18), GROUP_ROW(KIND, 19)
#define GROUP_NAMES_160                                                                              \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "               \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "               \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "               \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, "

// sums = the rows of `left` times the rows of `right` in their channels 16 step to 16 step + 15, or
// sums += that.
template <bool ADDS, u32 TILES>
__device__ __forceinline__ void group_rows(float (&sums)[TILES][4], Shared left, Shared right, u32 step) {
    static_assert(TILES == 8, "64 columns");
    const u64 a = tile_at(left) + step * 2, b = tile_at(right) + step * 2;
    if constexpr (ADDS) {
        asm volatile("{.reg .pred p; setp.eq.u32 p, 1, 1; " GROUP_PRODUCT "%32, %33, p, 1, 1, 0, 0;}"
                     : GROUP_SUMS(GROUP_ADD) : "l"(a), "l"(b));
    } else {
        asm volatile("{.reg .pred p; setp.eq.u32 p, 0, 1; " GROUP_PRODUCT "%32, %33, p, 1, 1, 0, 0;}"
                     : GROUP_SUMS(GROUP_SET) : "l"(a), "l"(b));
    }
}

// The same with the left operand of the step in registers.
template <bool ADDS, u32 TILES>
__device__ __forceinline__ void group_rows(float (&sums)[TILES][4], const u32 (&left)[4], Shared right, u32 step) {
    static_assert(TILES == 8, "64 columns");
    const u64 b = tile_at(right) + step * 2;
    if constexpr (ADDS) {
        asm volatile("{.reg .pred p; setp.eq.u32 p, 1, 1; " GROUP_PRODUCT "{%32, %33, %34, %35}, %36, p, 1, 1, 0;}"
                     : GROUP_SUMS(GROUP_ADD)
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(b));
    } else {
        asm volatile("{.reg .pred p; setp.eq.u32 p, 0, 1; " GROUP_PRODUCT "{%32, %33, %34, %35}, %36, p, 1, 1, 0;}"
                     : GROUP_SUMS(GROUP_SET)
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(b));
    }
}

// sums += a left operand in registers times rows 16 step to 16 step + 15 of `right`.
template <u32 TILES>
__device__ __forceinline__ void group_columns(float (&sums)[TILES][4], const u32 (&left)[4], Shared right,
                                              u32 step) {
    static_assert(TILES == 8, "64 columns");
    const u64 b = tile_at(right) + step * 128;
    asm volatile("{.reg .pred p; setp.eq.u32 p, 1, 1; " GROUP_PRODUCT
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 1;}"
                 : GROUP_SUMS(GROUP_ADD)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(b));
}

// Keeps the compiler from setting sums later, or reading them earlier.
template <u32 TILES>
__device__ __forceinline__ void pin(float (&sums)[TILES][4]) {
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        asm volatile("" : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3]) : : "memory");
    }
}

#endif
