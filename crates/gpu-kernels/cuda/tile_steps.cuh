// What products by tiles of 64 x 64 are made of, on devices of compute capability 9.0: pieces that the
// copy engine brings, and a step of a product.
//
// A piece is 64 x 64 of bf16 or 64 x 32 of f32, in rows of 128 bytes that lie as wgmma.cuh describes.
//
// Defines: RIGHT_TRANSPOSED (1 where right factors lie as [columns, depth]), ACTIVATION_BYTES.
#pragma once

#include "engine.cuh"
#include "wgmma.cuh"

static constexpr u32 TILE = 64;
static constexpr u32 PIECE_DEPTH = 128 / ACTIVATION_BYTES;
static constexpr u32 PIECE_BYTES = TILE * 128;
// Warps that make a product as one.
static constexpr u32 TILE_WARPS = 4;
static_assert(RIGHT_TRANSPOSED || ACTIVATION_BYTES == 2, "f32 is multiplied along its rows only");

// Begins to copy a piece of a matrix from column x, row y on; zeros where there is no matrix.
__device__ __forceinline__ void piece_begin(Shared to, const TensorMap& map, u32 x, u32 y, Shared barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 : : "r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
}

// sums += a step of 32 bytes of depth.
__device__ __forceinline__ void tile_step(float (&sums)[8][4], Shared left, Shared right, u32 step, u32 adds) {
    const u64 a = tile_at(left) + step * 2;
#if ACTIVATION_BYTES == 2
    const u64 b = tile_at(right) + step * (RIGHT_TRANSPOSED ? 2 : 128);
    asm volatile("{.reg .pred p; setp.ne.u32 p, %34, 0; " GROUP_PRODUCT "%32, %33, p, 1, 1, 0, %35;}"
                 : GROUP_SUMS(GROUP_ADD) : "l"(a), "l"(b), "r"(adds), "n"(RIGHT_TRANSPOSED ? 0 : 1));
#else
    const u64 b = tile_at(right) + step * 2;
    asm volatile("{.reg .pred p; setp.ne.u32 p, %34, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1;}"
                 : GROUP_SUMS(GROUP_ADD) : "l"(a), "l"(b), "r"(adds));
#endif
}

// Keeps the compiler from setting the sums later, or reading them earlier.
__device__ __forceinline__ void pin(float (&sums)[8][4]) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        asm volatile("" : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3]) : : "memory");
    }
}
