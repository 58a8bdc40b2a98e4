// What the two ways through rows of logits share: loss.cu and loss_ring.cu.
//
// Defines: THREADS, VOCABULARY, STRIDE (a multiple of 8), ACTIVATION_BYTES.
#pragma once

#include "numbers.cuh"
#include "quick.cuh"
#include "reduce.cuh"

static constexpr u32 PIECES = STRIDE / WIDE;
static constexpr u32 PIECES_OF_THREAD = (PIECES + THREADS - 1) / THREADS;
// Logits are kept in registers where there are enough.
static constexpr bool IS_KEPT = PIECES_OF_THREAD <= 10;
static constexpr u32 UNROLLED = IS_KEPT ? PIECES_OF_THREAD : 1;

struct Loss {
    float* losses;
    Stored* logits;
    const u32* targets;
    // One number on the device, which may differ from step to step.
    const float* scale;
    u32 rows;
};

// Calls `visit(piece, first)` for the pieces of this thread.
template <class Visit>
__device__ __forceinline__ void over_pieces(Visit visit) {
#pragma unroll UNROLLED
    for (u32 piece = 0; piece < PIECES_OF_THREAD; piece++) {
        const u32 index = piece * THREADS + threadIdx.x;
        if (index < PIECES) visit(piece, index * WIDE);
    }
}

__device__ __forceinline__ bool is_inside(u32 first, u32 k) {
    return STRIDE == VOCABULARY || first + k < VOCABULARY;
}

template <u32 COUNT>
__device__ __forceinline__ Numbers<COUNT> numbers_of(const uint4& raw) {
    if constexpr (COUNT == 8) {
        return unpack<COUNT>(raw);
    } else {
        return {as_float(raw.x), as_float(raw.y), as_float(raw.z), as_float(raw.w)};
    }
}

template <u32 COUNT>
__device__ __forceinline__ uint4 packed(const Numbers<COUNT>& numbers) {
    const auto& at = numbers.at;
    if constexpr (COUNT == 8) {
        return make_uint4(narrow_two(at[0], at[1]), narrow_two(at[2], at[3]), narrow_two(at[4], at[5]),
                          narrow_two(at[6], at[7]));
    } else {
        return make_uint4(as_bits(at[0]), as_bits(at[1]), as_bits(at[2]), as_bits(at[3]));
    }
}
