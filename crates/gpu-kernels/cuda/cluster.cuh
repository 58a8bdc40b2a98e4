// Blocks of a cluster that each have 64 columns of the same 64 rows, and what they tell each other.
//
// Sums over a row are those of each block, in ascending columns within a thread and then by halves over
// lanes, put together in the order of the blocks.
#pragma once

#include "pairs.cuh"
#include "tile_steps.cuh"

// Where blocks tell each other a pair of each row: BLOCKS of them, and a barrier that `exchange` is the first
// to use.
struct Exchange {
    Shared barrier;
    // [BLOCKS, 64] pairs.
    Shared pairs;
    // Of this block in the cluster.
    u32 rank;
    // The first of the thread's two rows, 8 apart, and its place of the four that share them.
    u32 row;
    u32 t;
};

// Tells all blocks of the cluster what this one found of the thread's two rows. `is_first` of one thread only.
template <u32 BLOCKS>
__device__ __forceinline__ void tell(const Exchange& place, bool is_first, const Pair (&own)[2]) {
    if (is_first) barrier_expect(place.barrier, BLOCKS * TILE * 8);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const Shared at = place.pairs + (place.rank * TILE + place.row + 8 * half) * 8;
        for (u32 block = place.t; block < BLOCKS; block += 4) {
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                         : : "r"(place_of(at, block)), "f"(own[half].low), "f"(own[half].high),
                             "r"(place_of(place.barrier, block)) : "memory");
        }
    }
}

// What all of them found. A block waits for all that comes to it, so none is gone when something comes.
template <u32 BLOCKS>
__device__ __forceinline__ void be_told(const Exchange& place, Pair (&all)[2][BLOCKS]) {
    barrier_wait(place.barrier, 0);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
#pragma unroll
        for (u32 block = 0; block < BLOCKS; block++) {
            const Shared at = place.pairs + (block * TILE + place.row + 8 * half) * 8;
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(all[half][block].low), "=f"(all[half][block].high) : "r"(at) : "memory");
        }
    }
}
