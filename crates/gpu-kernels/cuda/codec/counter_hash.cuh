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
        const u32 s = four_low * MIX_INCREMENT + inner_key;
        words[0] = folded(folded(s, s ^ outer_key), MIX_MULTIPLIER_2);
        words[1] = folded(words[0], MIX_MULTIPLIER_1);
    }

  private:
    // The halves of a product of 64 bits, added without carry.
    __device__ static u32 folded(u32 x, u32 y) {
#if defined(__CUDACC__)
        u32 low, high;
        asm("{ .reg .u64 product; mul.wide.u32 product, %2, %3; mov.b64 {%0, %1}, product; }"
            : "=r"(low), "=r"(high) : "r"(x), "r"(y));
        return low ^ high;
#else
        const u64 product = (u64)x * y;
        return (u32)product ^ (u32)(product >> 32);
#endif
    }
};

// A number strictly between 0 and 1 from the upper 23 bits of a word, h: (h + 1/2) / 2^23, exactly.
__device__ __forceinline__ float uniform_of_word(u32 word) {
    return __fsub_rn(as_float(__funnelshift_r(word, 0x7Fu, 9)), 1.0f - 1.0f / 16777216.0f);
}
// The same of the word turned by a half.
__device__ __forceinline__ float turned_uniform(u32 word) {
    return uniform_of_word(__byte_perm(word, 0, 0x1032));
}
