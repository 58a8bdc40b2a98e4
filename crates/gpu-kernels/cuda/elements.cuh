// Parameters and gradients of a kind in memory, one or four at a time. Included by adamw.cu, whose chunks say where they
// are.
#pragma once

// The bits of the f32 parameter at `at` in a chunk.
template <class Kind>
__device__ __forceinline__ u32 load_parameter(const Chunk& chunk, u32 at) {
    const u32 bits = load_one<Kind::PARAMETER_BYTES>(chunk.parameters, at);
    if constexpr (Kind::SPLIT) return recombined(bits, load_one<2>(chunk.remainders, at));
    return bits;
}

template <class Kind>
__device__ __forceinline__ void store_parameter(const Chunk& chunk, u32 at, u32 bits) {
    if constexpr (Kind::SPLIT) {
        store_one<2>(chunk.parameters, at, upper_of(bits));
        store_one<2>(chunk.remainders, at, remainder_of(bits));
    } else {
        store_one<4>(chunk.parameters, at, bits);
#if COPIES
        store_one<2>(chunk.copies, at, narrow_two(as_float(bits), 0.0f));
#endif
    }
}

// The same of four parameters from `at` on, at a border of a wide access.
template <class Kind, class Index>
__device__ __forceinline__ Four<u32> load_parameters(const Chunk& chunk, Index at) {
    Four<u32> bits = load_four<Kind::PARAMETER_BYTES>(chunk.parameters, at);
    if constexpr (Kind::SPLIT) {
        const Four<u32> remainders = load_four<2>(chunk.remainders, at);
        for (u32 k = 0; k < LANES; k++) bits.at[k] = recombined(bits.at[k], remainders.at[k]);
    }
    return bits;
}

template <class Kind, class Index>
__device__ __forceinline__ void store_parameters(const Chunk& chunk, Index at, const Four<u32>& bits) {
    if constexpr (Kind::SPLIT) {
        Four<u32> upper, remainders;
        for (u32 k = 0; k < LANES; k++) {
            upper.at[k] = upper_of(bits.at[k]);
            remainders.at[k] = remainder_of(bits.at[k]);
        }
        store_four<2>(chunk.parameters, at, upper);
        store_four<2>(chunk.remainders, at, remainders);
    } else {
        store_four<4>(chunk.parameters, at, bits);
#if COPIES
        const u32 low = narrow_two(as_float(bits.at[0]), as_float(bits.at[1]));
        const u32 high = narrow_two(as_float(bits.at[2]), as_float(bits.at[3]));
        store(chunk.copies + (u64)at * 2, make_uint2(low, high));
#endif
    }
}

// The gradient at `at`.
template <class Kind>
__device__ __forceinline__ float load_gradient(const Chunk& chunk, u32 at) {
    const u32 bits = load_one<Kind::GRADIENT_BYTES>(chunk.gradients, at);
    return as_float(Kind::GRADIENT_BYTES == 2 ? bits << 16 : bits);
}

// Four gradients, at a border of a wide access.
template <class Kind, class Index>
__device__ __forceinline__ Four<float> load_gradients(const Chunk& chunk, Index at) {
    const Four<u32> bits = load_four<Kind::GRADIENT_BYTES>(chunk.gradients, at);
    Four<float> gradients;
    for (u32 k = 0; k < LANES; k++) {
        gradients.at[k] = as_float(Kind::GRADIENT_BYTES == 2 ? bits.at[k] << 16 : bits.at[k]);
    }
    return gradients;
}
