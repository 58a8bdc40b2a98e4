// What products over rows of several pairs of activations are, and how what a thread found of one is stored. Laid out as
// src/depth_tiles.rs has them.
//
// Defines: PRODUCTS_MAX.
#pragma once

#include "engine.cuh"

struct Factors {
    TensorMap left;
    TensorMap right;
};

struct Product {
    float* out;
    // Null if it is not wanted.
    float* bias;
    u32 m_end;
    u32 n_end;
    // How far rows of out are apart, if `by_rows`; else how far columns are.
    u32 stride;
    u32 by_rows;
    u32 adds;
    // The first of its blocks.
    u32 first_block;
};

struct AllProducts {
    // Not within products, which would be of another size where maps are aligned otherwise.
    Factors factors[PRODUCTS_MAX];
    Product at[PRODUCTS_MAX];
    u32 count;
    u32 rows;
    // Of all products, for blocks that go through several.
    u32 tiles;
};

// Stores one number or two that lie side by side, or adds to them.
template <bool ADDS>
__device__ __forceinline__ void put(float* at, float number) { *at = ADDS ? *at + number : number; }
template <bool ADDS>
__device__ __forceinline__ void put(float* at, float low, float high) {
    float2* const pair = reinterpret_cast<float2*>(at);
    if (ADDS) {
        const float2 there = *pair;
        low += there.x;
        high += there.y;
    }
    *pair = make_float2(low, high);
}
__device__ __forceinline__ void put(float* at, float number, u32 adds) {
    if (adds) return put<true>(at, number);
    put<false>(at, number);
}

template <bool BY_ROWS, bool ADDS, u32 COLUMN_STEPS>
__device__ __forceinline__ void store_some(const float (&sums)[COLUMN_STEPS][4], const Product& product, u32 m, u32 n) {
    const u64 stride = product.stride;
    float* const to = product.out + (BY_ROWS ? m * stride + n : n * stride + m);
#pragma unroll
    for (u32 i = 0; i < COLUMN_STEPS; i++) {
        // Both are whole tiles of eight, so that pairs are inside or outside.
        if (n + 8 * i >= product.n_end) break;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const float low = sums[i][2 * half], high = sums[i][2 * half + 1];
            if (BY_ROWS) {
                put<ADDS>(to + 8 * half * stride + 8 * i, low, high);
            } else {
                put<ADDS>(to + 8 * i * stride + 8 * half, low);
                put<ADDS>(to + (8 * i + 1) * stride + 8 * half, high);
            }
        }
    }
}

// Sums of rows m and m + 8 of out, and of eight columns for each step from n on.
template <u32 COLUMN_STEPS>
__device__ __forceinline__ void store_sums(const float (&sums)[COLUMN_STEPS][4], const Product& product, u32 m, u32 n) {
    if (product.by_rows) {
        if (product.adds) return store_some<true, true>(sums, product, m, n);
        return store_some<true, false>(sums, product, m, n);
    }
    if (product.adds) return store_some<false, true>(sums, product, m, n);
    store_some<false, false>(sums, product, m, n);
}
