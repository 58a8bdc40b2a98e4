// What threads of formats of blocks have in common: exchanges with their neighbours, where they are in
// a tensor, bounds of moments. Sums follow the one tree of formats/src/ustate.rs: four neighbours, then
// by halves.
#pragma once

#include "codec/published_random.cuh"

// Bytes that every array of a state of blocks is filled up to.
static constexpr u64 ARRAY_BYTES = 64;

__device__ __forceinline__ u64 padded(u64 bytes) {
    return (bytes + ARRAY_BYTES - 1) / ARRAY_BYTES * ARRAY_BYTES;
}
__device__ __forceinline__ u64 blocks_of(u64 elements, u64 block) {
    return (elements + block - 1) / block;
}

// ---- Exchanges between the threads of a block.

// Room that threads share: what they exchange, and tables.
struct SharedRoom {
    u32 exchange[THREADS];
    u64 sums[3];
    u32 tables[SHARED_TABLE_WORDS > 0 ? SHARED_TABLE_WORDS : 1];
};

// The room of this block: one for all kinds of tensors.
static __device__ __forceinline__ SharedRoom& shared_room() {
    __shared__ SharedRoom room;
    return room;
}

// What the thread HALF away has, in the other half of a run of 2 HALF threads.
template <u32 HALF>
__device__ __forceinline__ u32 exchanged(SharedRoom& room, u32 word) {
    if constexpr (HALF < WARP_LANES) {
        return __shfl_xor_sync(0xFFFFFFFFu, word, HALF);
    } else {
        __syncthreads();
        room.exchange[threadIdx.x] = word;
        __syncthreads();
        return room.exchange[threadIdx.x ^ HALF];
    }
}

struct AddFloats {
    __device__ static u32 of(u32 x, u32 y) { return as_bits(__fadd_rn(as_float(x), as_float(y))); }
};
struct AddWords {
    __device__ static u32 of(u32 x, u32 y) { return x + y; }
};
struct Largest {
    __device__ static u32 of(u32 x, u32 y) { return max(x, y); }
};
struct Smallest {
    __device__ static u32 of(u32 x, u32 y) { return min(x, y); }
};

// Folds the words of a run of RUN threads by halves; all of them get the result.
template <class Operation, u32 RUN>
__device__ __forceinline__ u32 folded(SharedRoom& room, u32 word) {
    if constexpr (RUN > 1) {
        word = Operation::of(word, exchanged<RUN / 2>(room, word));
        return folded<Operation, RUN / 2>(room, word);
    } else {
        return word;
    }
}

// Waits for the threads of a run.
template <u32 RUN>
__device__ __forceinline__ void wait_for_run() {
    if constexpr (RUN <= WARP_LANES) {
        __syncwarp();
    } else {
        __syncthreads();
    }
}

// ---- What a thread works on.

// Where a thread is, and what its tensor's update reads besides its elements.
struct Seat {
    const Chunk& chunk;
    const Group& group;
    SharedRoom& room;
    // Its first element in the tensor, and how many of its four there are.
    u64 index;
    i32 count;
    // The keys of published random numbers.
    u32 first_key;
    u32 second_key;

    __device__ bool has(u32 k) const { return (i32)k < count; }

    // Whether the block of its elements begins in the tensor, so that it has scales, though none of
    // its elements may be there.
    __device__ bool has_block(u32 elements) const {
        return index / elements * elements < chunk.length;
    }

    template <bool REPAIRED>
    __device__ Uniforms uniforms(u32 k) const {
        const u32 own = (u32)index + k;
        if constexpr (REPAIRED) return Uniforms(chunk.stream.word(own));
        return Uniforms(published_uniform(first_key, own), published_uniform(second_key, own));
    }
};

__device__ __forceinline__ u32 load_byte(u64 address) {
#if defined(__CUDACC__)
    u32 byte;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(byte) : "l"(address) : "memory");
    return byte;
#else
    return *reinterpret_cast<const u8*>(address);
#endif
}
__device__ __forceinline__ void store_byte(u64 address, u32 byte) {
#if defined(__CUDACC__)
    asm volatile("st.global.u8 [%0], %1;" : : "l"(address), "r"(byte) : "memory");
#else
    *reinterpret_cast<u8*>(address) = (u8)byte;
#endif
}

// Moves what lies beyond a bound there.
__device__ __forceinline__ float within(float x, float bound) {
    x = x < bound ? x : bound;
    return x > -bound ? x : -bound;
}

// A decoded v, raised to where exact moments could have m beside it.
__device__ __forceinline__ float at_least_ratio(float m, float v, const Group& group) {
    const float root = __fmul_rn(m, group.inverse_ratio_max_before);
    const float least = __fmul_rn(root, root);
    return least > v ? least : v;
}

// Both moments of four elements.
struct Moments4 {
    float m[LANES];
    float v[LANES];
};
