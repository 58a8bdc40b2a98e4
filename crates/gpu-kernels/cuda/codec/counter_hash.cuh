// Random words made from counters; twin of formats/src/counter_hash.rs.
//
//     absorb(h, w) = mix(h ^ w) + MIX_INCREMENT
//     word         = mix(mix(index_low ^ inner key) + outer key)
//
// Seed and update are absorbed once for all tensors of an update, on the host or in advance.cu; a
// kernel goes on with the tensor and the upper half of the index.
#pragma once

#include "prelude.cuh"

__device__ __forceinline__ u32 mix(u32 word) {
    word = (word ^ word >> 16) * MIX_MULTIPLIER_1;
    word = (word ^ word >> 15) * MIX_MULTIPLIER_2;
    return word ^ word >> 16;
}

__device__ __forceinline__ u32 absorb(u32 hash, u32 word) {
    return mix(hash ^ word) + MIX_INCREMENT;
}

// The keys of an update after seed and update number.
struct UpdateKeys {
    u32 inner;
    u32 outer;

    __device__ static UpdateKeys of(u64 seed, u64 update) {
        const u32 counters[] = {(u32)seed, (u32)(seed >> 32), (u32)update, (u32)(update >> 32)};
        UpdateKeys keys = {1, 2};
        for (u32 counter : counters) {
            keys.inner = absorb(keys.inner, counter);
            keys.outer = absorb(keys.outer, counter);
        }
        return keys;
    }
};

// The words of one tensor at one update, for elements with one upper half of their index.
struct RandomStream {
    u32 inner_key;
    u32 outer_key;

    RandomStream() = default;

    __device__ RandomStream(UpdateKeys keys, u32 tensor, u32 index_high)
        : inner_key(absorb(absorb(keys.inner, tensor), index_high)),
          outer_key(absorb(absorb(keys.outer, tensor), index_high)) {}

    __device__ u32 word(u32 index_low) const {
        return mix(mix(index_low ^ inner_key) + outer_key);
    }
};

// Two numbers strictly between 0 and 1 from the halves of a word: for a first and a second moment.
struct Uniforms {
    float first;
    float second;

    __device__ explicit Uniforms(u32 word) : first(of(word & 0xFFFFu)), second(of(word >> 16)) {}
    __device__ Uniforms(float first, float second) : first(first), second(second) {}

  private:
    __device__ static float of(u32 half) {
        return __fmul_rn(__fadd_rn(__int2float_rn((i32)half), 0.5f), power_of_two(-16));
    }
};
