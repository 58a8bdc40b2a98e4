// The end of a branch, of a thread's part of a tile of 64 x 64: the residual sum, and the LayerNorm of its rows,
// of which every block of a cluster has 64 columns.
//
//   x = residual + product + b          out = (x - mean) scale gain + bias
//
// The variance is put together from the blocks' own means and sums of squares, so that nothing cancels.
//
// Defines: CHANNELS, EPSILON.
#pragma once

#include "cluster.cuh"

// What is loaded while the product is made, and not looked at before.
struct BranchTerms {
    StoredPair residual[8][2];
    StoredPair layer_bias[8];
    Pair gain[8];
    Pair bias[8];
};

// From the thread's column on, of its two rows; those that are not there are others.
__device__ __forceinline__ void load_terms(BranchTerms& terms, const Stored* residual, const Stored* layer_bias,
                                           const float* gain_bias, u32 row, u32 column, u32 rows) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        terms.gain[i] = load_pair_f32(gain_bias + column + 8 * i);
        terms.bias[i] = load_pair_f32(gain_bias + CHANNELS + column + 8 * i);
        terms.layer_bias[i] = load_stored(layer_bias + column + 8 * i);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 at = row + 8 * half < rows ? row + 8 * half : 0;
            terms.residual[i][half] = load_stored(residual + (u64)at * CHANNELS + column + 8 * i);
        }
    }
}

// x, as it is stored, and of the thread's rows the block's mean and sum of squares around it.
__device__ __forceinline__ void residual_sum(Pair (&x)[8][2], Pair (&found)[2], const float (&sums)[8][4],
                                             const BranchTerms& terms) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float sum = 0.0f, squares = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const Pair before = widen_pair(terms.residual[i][half]), bias = widen_pair(terms.layer_bias[i]);
            x[i][half] = rounded(Pair{before.low + (sums[i][2 * half] + bias.low),
                                      before.high + (sums[i][2 * half + 1] + bias.high)});
            sum += x[i][half].low + x[i][half].high;
        }
        const float mean = over_row(sum) * (1.0f / TILE);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const float low = x[i][half].low - mean, high = x[i][half].high - mean;
            squares = fmaf(low, low, fmaf(high, high, squares));
        }
        found[half] = {mean, over_row(squares)};
    }
}

// Mean and 1 / deviation of a row, from what the blocks found.
template <u32 BLOCKS>
__device__ __forceinline__ Pair moments(const Pair (&all)[BLOCKS]) {
    float mean = 0.0f, squares = 0.0f;
#pragma unroll
    for (u32 block = 0; block < BLOCKS; block++) mean += all[block].low;
    mean *= 1.0f / BLOCKS;
#pragma unroll
    for (u32 block = 0; block < BLOCKS; block++) {
        const float deviation = all[block].low - mean;
        squares += fmaf(deviation * deviation, (float)TILE, all[block].high);
    }
    return {mean, __fdiv_rn(1.0f, __fsqrt_rn(squares * (1.0f / CHANNELS) + EPSILON))};
}

__device__ __forceinline__ Pair normed(Pair x, Pair moments, Pair gain, Pair bias) {
    return {fmaf((x.low - moments.low) * moments.high, gain.low, bias.low),
            fmaf((x.high - moments.low) * moments.high, gain.high, bias.high)};
}

// Leaves mean and 1 / deviation of the thread's rows in [rows, 2].
__device__ __forceinline__ void store_moments(float* statistics, const Pair (&moments)[2], u32 row, u32 rows) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        if (row + 8 * half < rows) {
            statistics[2 * (u64)(row + 8 * half)] = moments[half].low;
            statistics[2 * (u64)(row + 8 * half) + 1] = moments[half].high;
        }
    }
}
