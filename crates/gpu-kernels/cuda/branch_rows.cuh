// What the two ends of a branch of a block share (branch_forward.cu, branch_backward.cu): a product whose
// rows are then worked on as a whole, by a cluster of blocks of which each has 64 of the CHANNELS columns.
#pragma once

#define COLUMNS CHANNELS
#define EXCHANGES 1

#include "cluster.cuh"
#include "tile_rows.cuh"

// What the blocks of the cluster found of the thread's two rows.
__device__ __forceinline__ void exchange(const Place& place, const Pair (&own)[2], Pair (&all)[2][TILES_OF_ROW]) {
    cluster_wait();
    const Exchange of_row = {place.exchange, place.exchange + 16, blockIdx.x % TILES_OF_ROW, place.tile_row,
                             place.t};
    tell<TILES_OF_ROW>(of_row, threadIdx.x == 0, own);
    be_told(of_row, all);
}
