// What the kernels of causal attention share: the argument of a launch, which block works on what, and
// how numbers lie in memory.
//
// Formula, with c = scale * log2(e) and scores s = q . k that were not scaled:
//
//     p[t, u] = exp2(c s[t, u] - shift[t]) * reciprocal[t]        for u <= t, else 0
//     shift[t] = c max_u s[t, u]         reciprocal[t] = 1 / sum_u exp2(c s[t, u] - shift[t])
//
// Statistics are [B T, H, 2]: shift and reciprocal. The backward pass reads them from its
// workspace, where the rows of a head lie side by side with o = d_out . out: three planes of B H
// PADDED_TIME numbers, shift, o and reciprocal; or one of pairs, shift + log2(sum) and o, for
// kernels that take p for a single power. Rows from T to PADDED_TIME have an infinite shift, so
// that their probabilities are 0.
//
// Defines: HEAD_SIZE, ELEMENT_BYTES (of activations), THREADS, BLOCKS_MIN.
#pragma once

#include "mma.cuh"

// Everything a launch is given.
struct Attention {
    // [B T, 3 C], the gradients likewise; [B T, C]; [B T, H, 2]; the planes.
    u64 qkv;
    u64 d_qkv;
    u64 out;
    u64 d_out;
    float* statistics;
    float* planes;
    // What blocks found that work on a part of a tile, and how many of them are done, 0 between launches:
    // attention_parts.cuh.
    float* parts;
    u32* parts_done;
    u32 batch;
    u32 time;
    u32 padded_time;
    u32 heads;
    // Tiles of a head's rows, and of how many heads, the last ones, the longest tiles of all come first; of those before
    // them, all tiles of a head come before those of the next one.
    u32 tiles;
    u32 mixed_heads;
    // 1 / sqrt(D), and c.
    float scale;
    float scale_log2;
    // Tasks of all blocks, how much further each turn begins in them, or how many were taken, 0 between launches:
    // attention_turns.cuh.
    u32 rotation;
    u32 tasks;
    u32* taken;
};

// A head of a window, and how far its tile is from the longest one.
struct Task {
    u32 window;
    u32 head;
    u32 rank;
};

// The task of a block, of `ranks` for each head.
__device__ __forceinline__ Task task_of_block(const Attention& call, u32 block, u32 ranks) {
    const u32 first_mixed = call.batch * call.heads - call.mixed_heads;
    const bool is_mixed = block >= first_mixed * ranks;
    const u32 number = block - (is_mixed ? first_mixed * ranks : 0);
    const u32 divisor = is_mixed ? call.mixed_heads : ranks;
    const u32 quotient = number / divisor, remainder = number - quotient * divisor;
    const u32 pair = is_mixed ? first_mixed + remainder : quotient;
    const u32 rank = is_mixed ? quotient : remainder;
    const u32 window = pair / call.heads;
    return {window, pair - window * call.heads, rank};
}

// Elements between rows of qkv and of out.
__device__ __forceinline__ u32 channels(const Attention& call) { return call.heads * HEAD_SIZE; }

// Addresses of a head's first row: third 0, 1, 2 of qkv or its gradient, and out or its gradient.
__device__ __forceinline__ u64 head_of_qkv(const Attention& call, u64 qkv, Task task, u32 third) {
    const u64 row = (u64)task.window * call.time * 3 + third;
    return qkv + (row * channels(call) + task.head * HEAD_SIZE) * ELEMENT_BYTES;
}
__device__ __forceinline__ u64 head_of_out(const Attention& call, u64 out, Task task) {
    const u64 row = (u64)task.window * call.time;
    return out + (row * channels(call) + task.head * HEAD_SIZE) * ELEMENT_BYTES;
}
__device__ __forceinline__ float* statistics_of(const Attention& call, Task task, u32 row) {
    return call.statistics + (((u64)task.window * call.time + row) * call.heads + task.head) * 2;
}

// Plane number `plane` of a head, and its pairs.
__device__ __forceinline__ float* plane_of(const Attention& call, Task task, u32 plane) {
    const u64 heads = (u64)call.batch * call.heads;
    return call.planes + (plane * heads + task.window * call.heads + task.head) * call.padded_time;
}
__device__ __forceinline__ float* pairs_of(const Attention& call, Task task) {
    const u64 head = (u64)task.window * call.heads + task.head;
    return call.planes + head * call.padded_time * 2;
}

// Element `index` of an array of activations, as f32.
__device__ __forceinline__ float load_element(u64 array, u64 index) {
    u32 bits;
    if constexpr (ELEMENT_BYTES == 4) {
        load(array + index * 4, bits);
    } else {
        u16 half;
        load(array + index * 2, half);
        bits = (u32)half << 16;
    }
    return as_float(bits);
}
__device__ __forceinline__ void store_element(u64 array, u64 index, float number) {
    if constexpr (ELEMENT_BYTES == 4) {
        store(array + index * 4, as_bits(number));
    } else {
        store(array + index * 2, (u16)pack_bf16(number, 0.0f));
    }
}

// Four elements from `index` on, where the address allows it.
__device__ __forceinline__ float4 load_elements(u64 array, u64 index) {
    if constexpr (ELEMENT_BYTES == 4) {
        uint4 raw;
        load(array + index * 4, raw);
        return make_float4(as_float(raw.x), as_float(raw.y), as_float(raw.z), as_float(raw.w));
    } else {
        uint2 raw;
        load(array + index * 2, raw);
        return make_float4(bf16_low(raw.x), bf16_high(raw.x), bf16_low(raw.y), bf16_high(raw.y));
    }
}
__device__ __forceinline__ void store_elements(u64 array, u64 index, const float4& four) {
    if constexpr (ELEMENT_BYTES == 4) {
        store(array + index * 4,
              make_uint4(as_bits(four.x), as_bits(four.y), as_bits(four.z), as_bits(four.w)));
    } else {
        store(array + index * 2, make_uint2(pack_bf16(four.x, four.y), pack_bf16(four.z, four.w)));
    }
}

// Sums over the lanes of a warp whose numbers differ in the bits below `lanes`, by one tree.
template <u32 LANES_OF_SUM>
__device__ __forceinline__ float sum_over_lanes(float number) {
    for (u32 mask = LANES_OF_SUM / 2; mask > 0; mask /= 2) {
        number += __shfl_xor_sync(0xFFFFFFFFu, number, mask);
    }
    return number;
}
template <u32 LANES_OF_MAXIMUM>
__device__ __forceinline__ float max_over_lanes(float number) {
    for (u32 mask = LANES_OF_MAXIMUM / 2; mask > 0; mask /= 2) {
        number = fmaxf(number, __shfl_xor_sync(0xFFFFFFFFu, number, mask));
    }
    return number;
}

__device__ __forceinline__ float infinity() { return as_float(INFINITE); }
