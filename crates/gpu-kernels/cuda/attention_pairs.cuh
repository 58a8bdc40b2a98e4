// What attention's backward pass wants to know of each row of a head of 64 channels, from a thread's part of a tile of
// 64 x 64 of the gradient of attention's output: pairs {shift - log2(reciprocal), d_out . out} that
// attention_planes.cuh describes. Windows of `time` rows are not padded, so every pair is written.
#pragma once

#include "pairs.cuh"

struct AttentionRows {
    // [rows, 64 heads]
    const Stored* out;
    // [rows, heads, 2]: largest score and 1 / sum, as attention.cuh describes.
    const float* statistics;
    // [windows, heads, time, 2]
    float* pairs;
    u32 time;
};

// What is loaded while the gradient is made, and not looked at before.
struct AttentionTerms {
    StoredPair out[8][2];
    Pair statistics[2];
};

// From the thread's column on, of its two rows; those that are not there are others.
__device__ __forceinline__ void load_terms(AttentionTerms& terms, const AttentionRows& attention, u32 row, u32 column,
                                           u32 heads, u32 head, u32 rows) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 at = row + 8 * half < rows ? row + 8 * half : 0;
        terms.statistics[half] = load_pair_f32(attention.statistics + ((u64)at * heads + head) * 2);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            terms.out[i][half] = load_stored(attention.out + (u64)at * heads * 64 + column + 8 * i);
        }
    }
}

// `d_out(i, half)` as it is stored; `t` is the thread's place of the four that share its rows.
template <class Pairs>
__device__ __forceinline__ void store_pairs(const AttentionRows& attention, const AttentionTerms& terms, u32 row, u32 t,
                                            u32 heads, u32 head, u32 rows, Pairs d_out) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float o = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const Pair d = d_out(i, half), out = widen_pair(terms.out[i][half]);
            o = fmaf(out.low, d.low, fmaf(out.high, d.high, o));
        }
        o = over_row(o);
        const u32 at = row + 8 * half;
        if (t == 0 && at < rows) {
            const u64 of_head = (u64)(at / attention.time) * heads + head;
            float* pair = attention.pairs + (of_head * attention.time + at % attention.time) * 2;
            pair[0] = terms.statistics[half].low - log2_fast(terms.statistics[half].high);
            pair[1] = o;
        }
    }
}
