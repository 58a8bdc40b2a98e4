// What the two ends of a branch of a block share (branch_forward.cu, branch_backward.cu): a product whose
// rows are then worked on as a whole, by a cluster of blocks of which each has 64 of the CHANNELS columns.
//
// Sums over a row are those of each block, in ascending columns within a thread and then by halves over
// lanes, put together in the order of the blocks.
#pragma once

#define COLUMNS CHANNELS
#define EXCHANGES 1

#include "tile_rows.cuh"

static constexpr float PER_CHANNEL = 1.0f / CHANNELS;

// Two halves of a barrier of all threads of the cluster: nobody reaches for the shared memory of a block that
// has not begun.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

// The same place in the shared memory of a block of the cluster.
__device__ __forceinline__ Shared place_of(Shared own, u32 block) {
    Shared other;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(own), "r"(block));
    return other;
}

// Tells all blocks of the cluster what this one found of the thread's two rows, and reads what they found. A
// block waits for all that comes to it, so none is gone when something comes.
__device__ __forceinline__ void exchange(const Place& place, const Pair (&own)[2], Pair (&all)[2][TILES_OF_ROW]) {
    const Shared barrier = place.exchange, pairs = place.exchange + 16;
    const u32 rank = blockIdx.x % TILES_OF_ROW;
    if (threadIdx.x == 0) barrier_expect(barrier, TILES_OF_ROW * TILE * 8);
    cluster_wait();
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const Shared at = pairs + (rank * TILE + place.tile_row + 8 * half) * 8;
        for (u32 block = place.t; block < TILES_OF_ROW; block += 4) {
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                         : : "r"(place_of(at, block)), "f"(own[half].low), "f"(own[half].high),
                             "r"(place_of(barrier, block)) : "memory");
        }
    }
    barrier_wait(barrier, 0);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
#pragma unroll
        for (u32 block = 0; block < TILES_OF_ROW; block++) {
            const Shared at = pairs + (block * TILE + place.tile_row + 8 * half) * 8;
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(all[half][block].low), "=f"(all[half][block].high) : "r"(at) : "memory");
        }
    }
}
