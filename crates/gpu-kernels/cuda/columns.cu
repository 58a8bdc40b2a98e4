// Sums over the rows of matrices, column by column, in two stages: runs of rows, then the runs in
// order. Launched by src/columns.rs: gradients of biases, and the second stage of other sums.
//
// `column_runs` reads activations [rows, columns] and overwrites partials [runs, columns]; run r has the rows from
// r run_rows on. Grid: runs times column tiles of TILE_COLUMNS, tiles first.
// `column_sums` takes SUMS at once: each reads partials [runs, stride], of which the last `columns`
// columns count, and overwrites sums [columns], or adds to them. Grid: tiles of LANE_COLUMNS columns
// of one sum after the other. In both a block has GROUPS groups of threads that take every
// GROUPS-th row (SUM_GROUPS-th in the second stage); the groups are added in order.
//
// Defines: THREADS, SUM_THREADS (of the second stage), SUMS_MAX, VECTOR, ACTIVATION_BYTES.

#include "numbers.cuh"

// Threads side by side, with VECTOR columns each in the first stage and one in the second.
static constexpr u32 LANE_COLUMNS = 32;
static constexpr u32 GROUPS = THREADS / LANE_COLUMNS;
static constexpr u32 SUM_GROUPS = SUM_THREADS / LANE_COLUMNS;
static constexpr u32 TILE_COLUMNS = LANE_COLUMNS * VECTOR;

struct Runs {
    const Stored* matrix;
    float* partials;
    u32 rows;
    u32 columns;
    u32 run_rows;
    u32 runs;
};

struct Columns {
    const float* partials;
    float* sums;
    u32 runs;
    u32 columns;
    u32 stride;
    u32 adds;
    // The first of its blocks.
    u32 first_block;
};

struct AllColumns {
    u32 count;
    Columns at[SUMS_MAX];
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    column_runs(const __grid_constant__ Runs args) {
    alignas(16) __shared__ float shared[GROUPS][TILE_COLUMNS];
    const u32 tiles = (args.columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const u32 run = blockIdx.x / tiles;
    const u32 lane = threadIdx.x % LANE_COLUMNS, group = threadIdx.x / LANE_COLUMNS;
    const u32 column = blockIdx.x % tiles * TILE_COLUMNS + lane * VECTOR;
    const u32 end = min((run + 1) * args.run_rows, args.rows);
    Numbers<VECTOR> sums = {};
    if (column < args.columns) {
#pragma unroll 4
        for (u32 row = run * args.run_rows + group; row < end; row += GROUPS) {
            const auto numbers =
                load_numbers<VECTOR>(args.matrix + (u64)row * args.columns + column);
#pragma unroll
            for (u32 k = 0; k < VECTOR; k++) sums.at[k] += numbers.at[k];
        }
    }
    store_numbers<VECTOR>(shared[group] + lane * VECTOR, sums);
    __syncthreads();
    for (u32 i = threadIdx.x; i < TILE_COLUMNS; i += THREADS) {
        const u32 out = blockIdx.x % tiles * TILE_COLUMNS + i;
        float sum = 0.0f;
        for (u32 g = 0; g < GROUPS; g++) sum += shared[g][i];
        if (out < args.columns) args.partials[(u64)run * args.columns + out] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(SUM_THREADS, 1)
    column_sums(const __grid_constant__ AllColumns all) {
    __shared__ float shared[SUM_GROUPS][LANE_COLUMNS];
    const u32 lane = threadIdx.x % LANE_COLUMNS, group = threadIdx.x / LANE_COLUMNS;
    u32 index = 0;
    while (index + 1 < all.count && all.at[index + 1].first_block <= blockIdx.x) index++;
    const Columns args = all.at[index];
    const u32 column = (blockIdx.x - args.first_block) * LANE_COLUMNS + lane;
    float sum = 0.0f;
    if (column < args.columns) {
#pragma unroll 4
        for (u32 run = group; run < args.runs; run += SUM_GROUPS) {
            sum += args.partials[(u64)(run + 1) * args.stride - args.columns + column];
        }
    }
    shared[group][lane] = sum;
    __syncthreads();
    if (group == 0 && column < args.columns) {
        sum = 0.0f;
        for (u32 g = 0; g < SUM_GROUPS; g++) sum += shared[g][lane];
        args.sums[column] = args.adds ? args.sums[column] + sum : sum;
    }
}
