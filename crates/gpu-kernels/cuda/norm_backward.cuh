// The way back through the LayerNorm at the beginning of a branch and the residual sum before it, of a thread's part
// of a tile of 64 x 64. Every block of a cluster has 64 columns of the rows.
//
//   n = (x - mean) scale, g = d_out gain, as in layernorm.cu:
//   d_x = (g - mean_c g - n mean_c(g n)) scale + d_residual
//
// d_out is not rounded.
//
// Defines: CHANNELS.
#pragma once

#include "cluster.cuh"

// What is loaded while the product is made, and not looked at before.
struct NormTerms {
    StoredPair x[8][2];
    StoredPair residual[8][2];
    Pair gain[8];
    // Mean and 1 / deviation.
    Pair moments[2];

    __device__ __forceinline__ Pair n(u32 i, u32 half) const {
        const Pair number = widen_pair(x[i][half]);
        return {(number.low - moments[half].low) * moments[half].high,
                (number.high - moments[half].low) * moments[half].high};
    }
};

// From the thread's column on, of its two rows; those that are not there are others.
__device__ __forceinline__ void load_terms(NormTerms& terms, const Stored* x, const float* statistics,
                                           const float* gain, const Stored* d_residual, u32 row, u32 column,
                                           u32 rows) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) terms.gain[i] = load_pair_f32(gain + column + 8 * i);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 at = row + 8 * half < rows ? row + 8 * half : 0;
        terms.moments[half] = load_pair_f32(statistics + 2 * (u64)at);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u64 place = (u64)at * CHANNELS + column + 8 * i;
            terms.x[i][half] = load_stored(x + place);
            terms.residual[i][half] = load_stored(d_residual + place);
        }
    }
}

// g, and of the thread's rows the block's sums of g and of g n.
__device__ __forceinline__ void gradient_sums(Pair (&g)[8][2], Pair (&found)[2], const float (&sums)[8][4],
                                              const NormTerms& terms) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) found[half] = {0.0f, 0.0f};
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const Pair gain = terms.gain[i];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const Pair n = terms.n(i, half);
            g[i][half] = {sums[i][2 * half] * gain.low, sums[i][2 * half + 1] * gain.high};
            found[half].low += g[i][half].low + g[i][half].high;
            found[half].high = fmaf(g[i][half].low, n.low, fmaf(g[i][half].high, n.high, found[half].high));
        }
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) found[half] = {over_row(found[half].low), over_row(found[half].high)};
}

// d_x, as it is stored, from what the blocks found. Rows that are not there have no gradient.
template <u32 BLOCKS>
__device__ __forceinline__ void input_gradient(Pair (&d_x)[8][2], const Pair (&g)[8][2],
                                               const Pair (&all)[2][BLOCKS], const NormTerms& terms, u32 row,
                                               u32 rows) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float mean_g = 0.0f, mean_gn = 0.0f;
#pragma unroll
        for (u32 block = 0; block < BLOCKS; block++) {
            mean_g += all[half][block].low;
            mean_gn += all[half][block].high;
        }
        mean_g *= 1.0f / CHANNELS;
        mean_gn *= 1.0f / CHANNELS;
        const bool is_there = row + 8 * half < rows;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const Pair n = terms.n(i, half), before = widen_pair(terms.residual[i][half]);
            const float low = (g[i][half].low - mean_g - n.low * mean_gn) * terms.moments[half].high;
            const float high = (g[i][half].high - mean_g - n.high * mean_gn) * terms.moments[half].high;
            d_x[i][half] = rounded(Pair{low + before.low, high + before.high});
            if (!is_there) d_x[i][half] = {0.0f, 0.0f};
        }
    }
}

// Sums over rows that a block leaves: of d_x, d_out n and d_out.
static constexpr u32 COLUMN_SUMS = 3;

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

// Those of the warp's 16 rows, to [COLUMN_SUMS, 64] floats.
__device__ __forceinline__ void warp_column_sums(Shared to, const Pair (&d_x)[8][2], const float (&sums)[8][4],
                                                 const NormTerms& terms, u32 g, u32 t) {
#pragma unroll
    for (u32 sum = 0; sum < COLUMN_SUMS; sum++) {
        float low[8], high[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const float* d = sums[i];
            if (sum == 0) {
                low[i] = d_x[i][0].low + d_x[i][1].low;
                high[i] = d_x[i][0].high + d_x[i][1].high;
            } else if (sum == 1) {
                const Pair n = terms.n(i, 0), below = terms.n(i, 1);
                low[i] = fmaf(d[0], n.low, d[2] * below.low);
                high[i] = fmaf(d[1], n.high, d[3] * below.high);
            } else {
                low[i] = d[0] + d[2];
                high[i] = d[1] + d[3];
            }
        }
        over_lanes(low, g);
        over_lanes(high, g);
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};"
                     : : "r"(to + (sum * TILE + 8 * g + 2 * t) * 4), "f"(low[0]), "f"(high[0]) : "memory");
    }
}

// Adds up what four warps left, `apart` bytes from each other, once all have, and leaves it in the
// columns from `column` on of a row tile's [COLUMN_SUMS, CHANNELS] `partials`. By 128 threads.
__device__ __forceinline__ void store_column_sums(float* partials, Shared left, u32 apart, u32 column) {
    for (u32 index = threadIdx.x % 128; index < COLUMN_SUMS * TILE; index += 128) {
        float total = 0.0f;
#pragma unroll
        for (u32 warp = 0; warp < TILE_WARPS; warp++) total += as_float(load_shared(left + warp * apart + index * 4));
        partials[index / TILE * CHANNELS + column + index % TILE] = total;
    }
}
