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

    // Two words for the four elements from index 4 four_low on.
    __device__ void words_of_four(u32 four_low, u32* words) const {
        words[0] = word(four_low);
        const u32 product = words[0] * MIX_MULTIPLIER_1;
        words[1] = product ^ product >> 16;
    }
};

// A number strictly between 0 and 1 from half a word, h: (h + 1/2) / 2^16, exactly.
__device__ __forceinline__ float uniform_of_half(u32 half) {
    return __fsub_rn(as_float(half * 128 + 0x3F800000u), 1.0f - 1.0f / 131072.0f);
}
__device__ __forceinline__ float lower_uniform(u32 word) { return uniform_of_half(word & 0xFFFFu); }
__device__ __forceinline__ float upper_uniform(u32 word) { return uniform_of_half(word >> 16); }
