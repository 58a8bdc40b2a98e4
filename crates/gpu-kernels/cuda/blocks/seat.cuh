// What threads of formats of blocks have in common: which elements are theirs, exchanges with their
// neighbours, bounds of moments.
//
// A warp takes TEAM_ELEMENTS neighbouring elements, in two rows: lane l has the four from 4 l on of the
// first row, and of the second. Sums follow the one tree of formats/src/ustate.rs: four neighbours,
// then by halves.
#pragma once

#include "codec/published_random.cuh"

// Quads of four neighbours of a thread, and elements of a row and of a warp.
static constexpr u32 QUADS = BLOCK_QUADS;
static_assert(QUADS == 2, "two rows");
static constexpr u32 ROW_ELEMENTS = WARP_LANES * LANES;
static constexpr u32 TEAM_ELEMENTS = ROW_ELEMENTS * QUADS;
// Elements of a tile: all threads' of a block.
static constexpr u32 TILE_ELEMENTS = THREADS * LANES * QUADS;

// Bytes that every array of a state of blocks is filled up to.
static constexpr u64 ARRAY_BYTES = 64;

__device__ __forceinline__ u64 padded(u64 bytes) {
    return (bytes + ARRAY_BYTES - 1) / ARRAY_BYTES * ARRAY_BYTES;
}
__device__ __forceinline__ u64 blocks_of(u64 elements, u64 block) {
    return (elements + block - 1) / block;
}

__device__ __forceinline__ u32 lane_of_thread() { return threadIdx.x % WARP_LANES; }
__device__ __forceinline__ u32 team_of_thread() { return threadIdx.x / WARP_LANES; }

// ---- Exchanges between the threads of a block.

// Room that threads share: what they exchange, and tables.
struct SharedRoom {
    alignas(16) u32 tables[SHARED_TABLE_WORDS > 0 ? SHARED_TABLE_WORDS : 1];
    u32 exchange[THREADS];
    // What a block of ustate1q finds out once.
    alignas(16) float units[12];
    u32 dead;
};

// The room of this block: one for all kinds of tensors.
static __device__ __forceinline__ SharedRoom& shared_room() {
    __shared__ SharedRoom room;
    return room;
}

struct AddFloats {
    static constexpr bool HAS_REDUCTION = false;
    __device__ static u32 of(u32 x, u32 y) { return as_bits(__fadd_rn(as_float(x), as_float(y))); }
};
struct AddWords {
    static constexpr bool HAS_REDUCTION = true;
    __device__ static u32 of(u32 x, u32 y) { return x + y; }
    __device__ static u32 reduced(u32 x) { return __reduce_add_sync(0xFFFFFFFFu, x); }
};
struct Largest {
    static constexpr bool HAS_REDUCTION = true;
    __device__ static u32 of(u32 x, u32 y) { return max(x, y); }
    __device__ static u32 reduced(u32 x) { return __reduce_max_sync(0xFFFFFFFFu, x); }
};
struct Smallest {
    static constexpr bool HAS_REDUCTION = true;
    __device__ static u32 of(u32 x, u32 y) { return min(x, y); }
    __device__ static u32 reduced(u32 x) { return __reduce_min_sync(0xFFFFFFFFu, x); }
};

// Folds the words of a run of RUN lanes by halves; all of them get the result.
template <class Operation, u32 RUN>
__device__ __forceinline__ u32 folded_in_warp(u32 word) {
    if constexpr (Operation::HAS_REDUCTION && RUN == WARP_LANES) {
        return Operation::reduced(word);
    } else if constexpr (RUN > 1) {
        word = Operation::of(word, __shfl_xor_sync(0xFFFFFFFFu, word, RUN / 2));
        return folded_in_warp<Operation, RUN / 2>(word);
    } else {
        return word;
    }
}

// The same of the words of WARPS warps, each of which has one.
template <class Operation, u32 WARPS>
__device__ __forceinline__ u32 folded_over_warps(SharedRoom& room, u32 word) {
    __syncthreads();
    if (lane_of_thread() == 0) room.exchange[team_of_thread()] = word;
    __syncthreads();
    const u32 first = team_of_thread() / WARPS * WARPS;
    word = room.exchange[first];
    for (u32 warp = 1; warp < WARPS; warp++) word = Operation::of(word, room.exchange[first + warp]);
    // Others may have other uses for the room.
    __syncthreads();
    return word;
}

// Folds the words of blocks of BLOCK elements; a thread has one for each of its quads. All threads of
// a block get the result. Numbers of more than a warp are folded in an order of their own.
template <class Operation, u32 BLOCK>
__device__ __forceinline__ void fold(SharedRoom& room, u32* words) {
    if constexpr (BLOCK <= ROW_ELEMENTS) {
        for (u32 j = 0; j < QUADS; j++) {
            words[j] = folded_in_warp<Operation, BLOCK / LANES>(words[j]);
        }
    } else {
        u32 word = folded_in_warp<Operation, WARP_LANES>(Operation::of(words[0], words[1]));
        if constexpr (BLOCK > TEAM_ELEMENTS) {
            word = folded_over_warps<Operation, BLOCK / TEAM_ELEMENTS>(room, word);
        }
        words[0] = words[1] = word;
    }
}

// Whether all threads vote for something: those of a warp, or, where blocks of BLOCK elements are the work of more, all.
template <u32 BLOCK>
__device__ __forceinline__ bool all_agree(SharedRoom& room, bool vote) {
    const bool is_agreed = __all_sync(0xFFFFFFFFu, vote);
    if constexpr (BLOCK <= TEAM_ELEMENTS) return is_agreed;
    return folded_over_warps<Smallest, THREADS / WARP_LANES>(room, is_agreed ? 1 : 0) != 0;
}

// As `fold`, where a run of lanes has a block of each quad: its first half gets that of the first quad, its second half that
// of the second, by half as many exchanges.
template <class Operation, u32 RUN>
__device__ __forceinline__ u32 folded_by_halves(const u32* words) {
    const bool is_second = (lane_of_thread() & (RUN / 2)) != 0;
    const u32 own = is_second ? words[1] : words[0], other = is_second ? words[0] : words[1];
    return folded_in_warp<Operation, RUN / 2>(
        Operation::of(own, __shfl_xor_sync(0xFFFFFFFFu, other, RUN / 2)));
}

// ---- What a thread works on.

// Where a thread is. FULL is whether all elements of the tile are there for certain, and QUICK whether they are plain
// numbers in the range of quick steps, or of no use.
template <bool FULL_TILE, bool QUICK_TILE>
struct Seat {
    static constexpr bool FULL = FULL_TILE;
    static constexpr bool QUICK = QUICK_TILE;
    static_assert(FULL || !QUICK, "what is not there is no plain number");
    const Chunk& chunk;
    const Group& group;
    SharedRoom& room;
    // Its first element in the chunk. With 64 bits, what is constant in an address stays constant.
    u64 at;

    // In the tile that begins at element `first` of the chunk.
    __device__ Seat(const Chunk& chunk, const Group& group, SharedRoom& room, u32 first)
        : chunk(chunk), group(group), room(room),
          at(first + team_of_thread() * TEAM_ELEMENTS + lane_of_thread() * LANES) {}

    // Its quad j in the chunk, and whether there is element k of it.
    __device__ u64 quad(u32 j) const { return at + j * ROW_ELEMENTS; }
    __device__ bool has(u32 j, u32 k) const { return FULL || (i32)(quad(j) + k) < chunk.end; }

    // The first element of the block of BLOCK elements that has an element of quad j, and whether it
    // is in the tensor.
    template <u32 BLOCK>
    __device__ u64 block(u32 j) const {
        return quad(j) / BLOCK;
    }
    template <u32 BLOCK>
    __device__ bool has_block(u64 number) const {
        return FULL || (i32)(number * BLOCK) < chunk.end;
    }
};

// Random numbers of a quad: one for the second moment of each element, and what the first is dithered by.
struct Draws {
    float uniforms[LANES];
    float dithers[LANES];
};

template <bool REPAIRED, class Seat>
__device__ __forceinline__ Draws draws(const Step& step, const Seat& seat, u32 j) {
    Draws draws;
    const u32 first = seat.chunk.index_low + (u32)seat.quad(j);
    if constexpr (REPAIRED) {
        u32 words[2];
        seat.chunk.stream.words_of_four(first / LANES, words);
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            draws.uniforms[k] = k & 1 ? turned_uniform(words[k / 2]) : uniform_of_word(words[k / 2]);
        }
#pragma unroll
        for (u32 k = 0; k < LANES; k++) draws.dithers[k] = draws.uniforms[k ^ 1];
    } else {
        const u32 seed = step.control->seed_low, update = (u32)step.control->update;
        const u32 first_key = published_key(seed, update, seat.chunk.published, 1);
        const u32 second_key = published_key(seed, update, seat.chunk.published, 2);
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            draws.uniforms[k] = published_uniform(second_key, first + k);
            draws.dithers[k] = published_dither(first_key, first + k);
        }
    }
    return draws;
}

// Moves what lies beyond a bound there.
__device__ __forceinline__ float within(float x, float bound) {
    return fmaxf(fminf(x, bound), -bound);
}

// A decoded v, raised to where exact moments could have m beside it.
__device__ __forceinline__ float at_least_ratio(float m, float v, const Group& group) {
    const float root = __fmul_rn(m, group.inverse_ratio_max_before);
    const float least = __fmul_rn(root, root);
    return fmaxf(least, v);
}

// The moments of a quad. Where they are to be encoded, r is the root of v.
struct Quad {
    float m[LANES];
    float v[LANES];
    float r[LANES];
    // The bits of the least and of the largest v, or of their roots; once they are found.
    u32 least;
    u32 most;

    template <bool BY_ROOT>
    __device__ void find_extremes() {
        u32 bits[LANES];
#pragma unroll
        for (u32 k = 0; k < LANES; k++) bits[k] = as_bits(BY_ROOT ? r[k] : v[k]);
        least = min(min(min(bits[0], bits[1]), bits[2]), bits[3]);
        most = max(max(max(bits[0], bits[1]), bits[2]), bits[3]);
    }
};

// The same bits of each quad, of those elements that are there; without any, all ones and zero.
template <bool BY_ROOT, class Seat>
__device__ __forceinline__ void extremes_of(const Seat& seat, const Quad* moments, u32* least, u32* most) {
#pragma unroll
    for (u32 j = 0; j < QUADS; j++) {
        least[j] = moments[j].least;
        most[j] = moments[j].most;
        if constexpr (!Seat::FULL) {
            least[j] = ~0u;
            most[j] = 0;
            for (u32 k = 0; k < LANES; k++) {
                if (!seat.has(j, k)) continue;
                const u32 bits = as_bits(BY_ROOT ? moments[j].r[k] : moments[j].v[k]);
                least[j] = min(least[j], bits);
                most[j] = max(most[j], bits);
            }
        }
    }
}
