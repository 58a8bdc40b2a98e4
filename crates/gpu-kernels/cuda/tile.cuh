// A product whose output is cut into tiles of 64 x 64, one for a block, on devices of compute capability
// 9.0: `tile = left right` over a depth of DEPTH, left [rows, DEPTH] and right [DEPTH, columns], or with
// its transpose [columns, DEPTH] in memory.
//
// One warp fetches, TILE_GROUPS times four compute. Pieces of both operands, 64 x 64 of bf16 or 64 x 32 of
// f32, rows of 128 bytes, come by the copy engine into a ring of STAGES places; a barrier of each place
// tells when both are there, another one when the piece before them is done with. The groups take turns
// with the pieces, so that one waits for its products while the other begins some, and the second's sums
// are added to the first's in the end. Sums: fragments of mma.cuh, a warp having 16 of the 64 rows. A group
// adds up in ascending depth.
//
// Shared memory: RING_BYTES from a multiple of 1024 on, then BARRIER_BYTES.
//
// Defines: DEPTH, STAGES, TILE_GROUPS (1 or 2), RIGHT_TRANSPOSED (1 for [columns, DEPTH]), ACTIVATION_BYTES.
#pragma once

#include "wgmma.cuh"

static constexpr u32 TILE = 64;
static constexpr u32 PIECE_DEPTH = 128 / ACTIVATION_BYTES;
static constexpr u32 PIECE_BYTES = TILE * 128;
static constexpr u32 PIECES = DEPTH / PIECE_DEPTH;
static constexpr u32 RING_BYTES = STAGES * 2 * PIECE_BYTES;
static constexpr u32 BARRIER_BYTES = STAGES * 16;
static constexpr u32 TILE_WARPS = 4;
static constexpr u32 TILE_THREADS = (TILE_GROUPS * TILE_WARPS + 1) * 32;
static_assert(DEPTH % PIECE_DEPTH == 0, "whole pieces");
static_assert(RIGHT_TRANSPOSED || ACTIVATION_BYTES == 2, "f32 is multiplied along its rows only");

// What the copy engine knows of a matrix; made by the driver.
struct alignas(64) TensorMap {
    u64 words[16];
};

__device__ __forceinline__ void barrier_set(Shared barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(count) : "memory");
}

// Arrives, and makes the barrier wait for so many bytes.
__device__ __forceinline__ void barrier_expect(Shared barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 : : "r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(Shared barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}

// Waits for the end of a phase, of which the first has parity 0.
__device__ __forceinline__ void barrier_wait(Shared barrier, u32 parity) {
    asm volatile("{\n\t.reg .pred done;\n\tagain:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@done bra over;\n\tbra again;\n\tover:\n\t}"
                 : : "r"(barrier), "r"(parity) : "memory");
}

// Begins to copy a piece of a matrix from column x, row y on; zeros where there is no matrix.
__device__ __forceinline__ void piece_begin(Shared to, const TensorMap& map, u32 x, u32 y, Shared barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 : : "r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
}

// The ring.
struct Ring {
    Shared pieces;
    Shared barriers;

    __device__ __forceinline__ Shared left(u32 stage) const { return pieces + stage * 2 * PIECE_BYTES; }
    __device__ __forceinline__ Shared right(u32 stage) const { return left(stage) + PIECE_BYTES; }
    __device__ __forceinline__ Shared there(u32 stage) const { return barriers + stage * 16; }
    __device__ __forceinline__ Shared done(u32 stage) const { return barriers + stage * 16 + 8; }
};

// By one thread, before all others may know of it.
__device__ __forceinline__ void set_barriers(const Ring& ring) {
#pragma unroll 1
    for (u32 stage = 0; stage < STAGES; stage++) {
        barrier_set(ring.there(stage), 1);
        barrier_set(ring.done(stage), TILE_WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

struct Operands {
    const TensorMap& left;
    const TensorMap& right;
    u32 row;
    u32 column;
};

// Fetches all pieces, by one thread.
__device__ __forceinline__ void fetch(const Ring& ring, const Operands& operands) {
#pragma unroll 1
    for (u32 piece = 0; piece < PIECES; piece++) {
        const u32 stage = piece % STAGES, depth = piece * PIECE_DEPTH;
        const Shared there = ring.there(stage);
        if (piece >= STAGES) barrier_wait(ring.done(stage), (piece / STAGES - 1) & 1);
        barrier_expect(there, 2 * PIECE_BYTES);
        piece_begin(ring.left(stage), operands.left, depth, operands.row, there);
        if (RIGHT_TRANSPOSED) {
            piece_begin(ring.right(stage), operands.right, depth, operands.column, there);
        } else {
            piece_begin(ring.right(stage), operands.right, operands.column, depth, there);
        }
    }
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

// The part of a group of four warps of the product: every TILE_GROUPS-th piece.
__device__ __forceinline__ void compute_part(float (&sums)[8][4], const Ring& ring, u32 group) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
    pin(sums);
#pragma unroll 1
    for (u32 piece = group; piece < PIECES; piece += TILE_GROUPS) {
        const u32 stage = piece % STAGES;
        barrier_wait(ring.there(stage), (piece / STAGES) & 1);
        group_fence();
#pragma unroll
        for (u32 step = 0; step < 4; step++) {
            tile_step(sums, ring.left(stage), ring.right(stage), step, piece / TILE_GROUPS + step);
        }
        asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 1;" ::: "memory");
        // The piece before is done with.
        if (piece >= TILE_GROUPS && piece - TILE_GROUPS + STAGES < PIECES && threadIdx.x % 32 == 0) {
            barrier_arrive(ring.done((piece - TILE_GROUPS) % STAGES));
        }
    }
    group_wait();
    pin(sums);
}

__device__ __forceinline__ void named_barrier(u32 name, u32 threads) {
    asm volatile("bar.sync %0, %1;" : : "r"(name), "r"(threads) : "memory");
}

// The product, by all groups; the first has the sums in the end, and goes on.
__device__ __forceinline__ bool compute(float (&sums)[8][4], const Ring& ring, u32 group) {
    compute_part(sums, ring, group);
    if constexpr (TILE_GROUPS == 2) {
        // The place of the second group's last piece, which nothing comes to any more.
        constexpr u32 LAST = PIECES - 1 - (PIECES % 2);
        const Shared at = ring.left(LAST % STAGES) + threadIdx.x % 128 * 4;
        if (group == 1) {
            named_barrier(2, 128);
#pragma unroll
            for (u32 i = 0; i < 32; i++) {
                asm volatile("st.shared.f32 [%0], %1;" : : "r"(at + i * 512), "f"(sums[i / 4][i % 4]) : "memory");
            }
        }
        named_barrier(3, 256);
        if (group == 1) return false;
#pragma unroll
        for (u32 i = 0; i < 32; i++) sums[i / 4][i % 4] += as_float(load_shared(at + i * 512));
    }
    return true;
}
