// What the backward pass of attention wants of each row beforehand, in the planes that attention.cuh
// describes. Launched by src/attention.rs before it.
//
// Defines beyond attention.cuh: PLANE_LANES, lanes that share a row; FOLDS_SUM, whether there are pairs
// or three planes.
#pragma once

#include "attention.cuh"

// Writes the planes. Grid: a thread for every 1 / PLANE_LANES of a row of B H PADDED_TIME; the lanes of
// a row read its d_out and out side by side.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_planes(const __grid_constant__ Attention call) {
    const u64 pairs = (u64)call.batch * call.heads;
    // Rows of one token come one after the other, so that a warp reads what lies side by side.
    const u64 row = ((u64)blockIdx.x * THREADS + threadIdx.x) / PLANE_LANES;
    const u32 lane = threadIdx.x % PLANE_LANES;
    const u64 window = row / ((u64)call.padded_time * call.heads);
    const u32 in_window = (u32)(row % ((u64)call.padded_time * call.heads));
    const u32 t = in_window / call.heads;
    const Task task = {(u32)window, in_window % call.heads, 0};
    const bool is_there = row < pairs * call.padded_time;
    float o = 0.0f;
    if (is_there && t < call.time) {
        const u64 first = (u64)t * channels(call);
        const u64 out = head_of_out(call, call.out, task);
        const u64 d_out = head_of_out(call, call.d_out, task);
        if constexpr (HEAD_SIZE % 4 == 0) {
            for (u32 d = lane * 4; d < HEAD_SIZE; d += PLANE_LANES * 4) {
                const float4 a = load_elements(out, first + d);
                const float4 b = load_elements(d_out, first + d);
                o = __fmaf_rn(a.x, b.x, o);
                o = __fmaf_rn(a.y, b.y, o);
                o = __fmaf_rn(a.z, b.z, o);
                o = __fmaf_rn(a.w, b.w, o);
            }
        } else {
            for (u32 d = lane; d < HEAD_SIZE; d += PLANE_LANES) {
                o = __fmaf_rn(load_element(out, first + d), load_element(d_out, first + d), o);
            }
        }
    }
    o = sum_over_lanes<PLANE_LANES>(o);
    if (!is_there || lane != 0) return;
    float shift = infinity(), reciprocal = 0.0f;
    if (t < call.time) {
        const float* statistics = statistics_of(call, task, t);
        shift = statistics[0];
        reciprocal = statistics[1];
    }
    if constexpr (FOLDS_SUM) {
        float* pair = pairs_of(call, task) + t * 2;
        pair[0] = t < call.time ? shift - log2_fast(reciprocal) : shift;
        pair[1] = o;
    } else {
        plane_of(call, task, 0)[t] = shift;
        plane_of(call, task, 1)[t] = o;
        plane_of(call, task, 2)[t] = reciprocal;
    }
}
