// The way back through the beginning of a branch, in one: the gradient of its first linear layer's input,
// that of the LayerNorm before it, and the residual sum. Launched by src/branch.rs.
//
//   d_out = d_y W^T                                                      [rows, C]
//   n = (x - mean) scale, g = d_out gain, as in layernorm.cu:
//   d_x = (g - mean_c g - n mean_c(g n)) scale + d_residual              overwritten
//
// d_y [rows, DEPTH], W [C, DEPTH]. The sums of d_x, d_out n and d_out over the 64 rows of a cluster are left
// in `partials` [row tiles, 3 C], as layernorm.cu leaves those of its blocks. d_out is not rounded.
//
// Grid: clusters of C / 64 blocks of TILE_THREADS, one for every 64 rows. How the product is made: tile.cuh.
//
// Defines: CHANNELS, SHARED_BYTES, and those of tile.cuh.

#include "branch_rows.cuh"

struct Branch {
    TensorMap left;
    TensorMap right;
    Stored* d_x;
    const Stored* x;
    const float* statistics;
    const float* gain;
    const Stored* d_residual;
    float* partials;
    u32 rows;
};

static constexpr u32 SUMS = 3;

// Adds up over the eight lanes that share columns: lane g is left with the sum of tile g, in at[0].
__device__ __forceinline__ void over_lanes(float (&at)[8], u32 g) {
#pragma unroll
    for (u32 half = 4; half > 0; half /= 2) {
        const bool is_upper = g & half;
#pragma unroll
        for (u32 i = 0; i < half; i++) {
            const float kept = is_upper ? at[i + half] : at[i], given = is_upper ? at[i] : at[i + half];
            at[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, 4 * half);
        }
    }
}

extern "C" __global__ void __cluster_dims__(TILES_OF_ROW, 1, 1) __launch_bounds__(TILE_THREADS, 1)
    branch_backward(const __grid_constant__ Branch branch) {
    DYNAMIC_SHARED(shared);
    __shared__ float columns[TILE_WARPS][SUMS][TILE];
    const Place place = place_of_thread(shared);
    begin(place);
    cluster_arrive();
    if (place.group == TILE_GROUPS) {
        fetch_all(place, branch.left, branch.right);
        return cluster_wait();
    }

    const u32 row = place.first_row + place.tile_row, column = place.first_column + 2 * place.t;
    // On its way while the product is made.
    Pair n[8][2], before[8][2], gain[8];
    float scales[2];
#pragma unroll
    for (u32 i = 0; i < 8; i++) gain[i] = load_pair_f32(branch.gain + column + 8 * i);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 at = row + 8 * half < branch.rows ? row + 8 * half : 0;
        const Pair statistics = load_pair_f32(branch.statistics + 2 * (u64)at);
        scales[half] = statistics.high;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u64 place = (u64)at * CHANNELS + column + 8 * i;
            const Pair x = load_pair(branch.x + place);
            before[i][half] = load_pair(branch.d_residual + place);
            n[i][half] = {(x.low - statistics.low) * statistics.high,
                          (x.high - statistics.low) * statistics.high};
        }
    }
    float sums[8][4];
    if (!compute(sums, place.ring, place.group)) return cluster_wait();

    Pair g[8][2], found[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) found[half] = {0.0f, 0.0f};
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            g[i][half] = {sums[i][2 * half] * gain[i].low, sums[i][2 * half + 1] * gain[i].high};
            found[half].low += g[i][half].low + g[i][half].high;
            found[half].high = fmaf(g[i][half].low, n[i][half].low,
                                    fmaf(g[i][half].high, n[i][half].high, found[half].high));
        }
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) found[half] = {over_row(found[half].low), over_row(found[half].high)};
    Pair all[2][TILES_OF_ROW];
    exchange(place, found, all);

    Pair d_x[8][2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float mean_g = 0.0f, mean_gn = 0.0f;
#pragma unroll
        for (u32 block = 0; block < TILES_OF_ROW; block++) {
            mean_g += all[half][block].low;
            mean_gn += all[half][block].high;
        }
        mean_g *= PER_CHANNEL;
        mean_gn *= PER_CHANNEL;
        const bool is_there = row + 8 * half < branch.rows;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const float low = (g[i][half].low - mean_g - n[i][half].low * mean_gn) * scales[half];
            const float high = (g[i][half].high - mean_g - n[i][half].high * mean_gn) * scales[half];
            d_x[i][half] = rounded(Pair{low + before[i][half].low, high + before[i][half].high});
            // Rows that are not there have no gradient either.
            if (!is_there) d_x[i][half] = {0.0f, 0.0f};
        }
    }
    store_rows(branch.d_x, place, branch.rows, [&](u32 i, u32 half) { return d_x[i][half]; });

    // Sums of columns: of the thread's two rows, the warp's, the block's.
#pragma unroll
    for (u32 sum = 0; sum < SUMS; sum++) {
        float low[8], high[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const float* d = sums[i];
            if (sum == 0) {
                low[i] = d_x[i][0].low + d_x[i][1].low;
                high[i] = d_x[i][0].high + d_x[i][1].high;
            } else if (sum == 1) {
                low[i] = fmaf(d[0], n[i][0].low, d[2] * n[i][1].low);
                high[i] = fmaf(d[1], n[i][0].high, d[3] * n[i][1].high);
            } else {
                low[i] = d[0] + d[2];
                high[i] = d[1] + d[3];
            }
        }
        over_lanes(low, place.g);
        over_lanes(high, place.g);
        columns[place.warp][sum][8 * place.g + 2 * place.t] = low[0];
        columns[place.warp][sum][8 * place.g + 2 * place.t + 1] = high[0];
    }
    // Of the four warps.
    asm volatile("bar.sync 1, %0;" : : "n"(TILE_WARPS * 32) : "memory");
    for (u32 index = threadIdx.x; index < SUMS * TILE; index += TILE_WARPS * 32) {
        const u32 sum = index / TILE, c = index % TILE;
        float total = 0.0f;
#pragma unroll
        for (u32 warp = 0; warp < TILE_WARPS; warp++) total += columns[warp][sum][c];
        branch.partials[((u64)(blockIdx.x / TILES_OF_ROW) * SUMS + sum) * CHANNELS + place.first_column + c] = total;
    }
}
