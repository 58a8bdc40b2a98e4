// What products by tiles of 64 x 64 are made of, on devices of compute capability 9.0: pieces that the
// copy engine brings, and a step of a product.
//
// A piece is 64 x 64 of bf16 or 64 x 32 of f32, in rows of 128 bytes that lie as wgmma.cuh describes.
//
// Defines: RIGHT_TRANSPOSED (1 where right factors lie as [columns, depth]), ACTIVATION_BYTES.
#pragma once

#include "engine.cuh"
#if ACTIVATION_BYTES == 2
#include "wgmma.cuh"
#else
#include "wgmma_tf32.cuh"
#endif

static constexpr u32 TILE = 64;
static constexpr u32 PIECE_DEPTH = 128 / ACTIVATION_BYTES;
static constexpr u32 PIECE_BYTES = TILE * 128;
// Warps that make a product as one.
static constexpr u32 TILE_WARPS = 4;
// f32 is multiplied along its rows only, unless it is a left operand from registers.
static constexpr bool RIGHT_ACROSS = !RIGHT_TRANSPOSED && ACTIVATION_BYTES == 4;

// Begins to copy a piece of a matrix from column x, row y on; zeros where there is no matrix.
__device__ __forceinline__ void piece_begin(Shared to, const TensorMap& map, u32 x, u32 y, Shared barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 : : "r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
}

// sums += a step of 32 bytes of depth, of tiles by the front of what the hardware calls them.
__device__ __forceinline__ void tile_step_at(float (&sums)[8][4], u32 left, u32 right, u32 step, u32 adds) {
    const u32 a = left + step * 2;
#if ACTIVATION_BYTES == 2
    const u32 b = right + step * (RIGHT_TRANSPOSED ? 2 : 128);
    asm volatile("{.reg .pred p; .reg .b64 a, b; setp.ne.u32 p, %34, 0; "
                 "mov.b64 a, {%32, %36}; mov.b64 b, {%33, %36}; " GROUP_PRODUCT "a, b, p, 1, 1, 0, %35;}"
                 : GROUP_SUMS(GROUP_ADD)
                 : "r"(a), "r"(b), "r"(adds), "n"(RIGHT_TRANSPOSED ? 0 : 1), "n"((u32)(TILE_KIND >> 32)));
#else
    const u32 b = right + step * 2;
    asm volatile("{.reg .pred p; .reg .b64 a, b; setp.ne.u32 p, %34, 0; "
                 "mov.b64 a, {%32, %35}; mov.b64 b, {%33, %35}; "
                 "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "a, b, p, 1, 1;}"
                 : GROUP_SUMS(GROUP_ADD) : "r"(a), "r"(b), "r"(adds), "n"((u32)(TILE_KIND >> 32)));
#endif
}
__device__ __forceinline__ void tile_step(float (&sums)[8][4], Shared left, Shared right, u32 step, u32 adds) {
    tile_step_at(sums, (u32)tile_at(left), (u32)tile_at(right), step, adds);
}
