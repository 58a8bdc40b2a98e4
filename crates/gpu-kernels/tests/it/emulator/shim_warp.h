// Warps of 32 lanes for the shim: what a warp does as one is a meeting of its lanes, at which each
// lays down what it brings and then takes what it needs of the others'. The host's text of `mma.cuh`.
//
// Copies beside the arithmetic are done at the latest moment at which a device may do them, when
// they are waited for, and spoil their place at the earliest, when they begin: a kernel that reads
// too early, or overwrites what others still read, computes nonsense here.
#pragma once

#include <cstdint>

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

// Two sets of slots by turns: nobody comes to the second meeting from here before all have
// left this one.
struct ShimSlot {
    unsigned words[16];
};
static ShimSlot shim_slots[32][2][32];

// Meets the other lanes of the warp; returns what each of the 32 laid down.
template <class T> inline const ShimSlot* shim_meet(const T& mine) {
    static_assert(sizeof(T) <= sizeof(ShimSlot), "fits a slot");
    const unsigned self = threadIdx.x;
    ShimThread& thread = shim_threads[self];
    ShimSlot* slots = shim_slots[self / 32][thread.meetings++ % 2];
    memcpy(&slots[self % 32], &mine, sizeof mine);
    thread.waits = SHIM_AT_WARP;
    shim_leave(thread);
    threadIdx.x = self;
    return slots;
}
template <class T> inline T shim_of(const ShimSlot* slots, unsigned lane) {
    T value;
    memcpy(&value, &slots[lane], sizeof value);
    return value;
}

inline void __syncwarp(unsigned = ~0u) { shim_meet(0); }
template <class T> inline T __shfl_sync(unsigned, T value, unsigned lane, unsigned width = 32) {
    const unsigned first = threadIdx.x % 32 / width * width;
    return shim_of<T>(shim_meet(value), first + lane % width);
}
template <class T> inline T __shfl_xor_sync(unsigned, T value, unsigned mask) {
    const unsigned lane = threadIdx.x % 32;
    return shim_of<T>(shim_meet(value), lane ^ mask);
}
template <class T> inline T __shfl_down_sync(unsigned, T value, unsigned by) {
    const unsigned lane = threadIdx.x % 32;
    return shim_of<T>(shim_meet(value), lane + by < 32 ? lane + by : lane);
}
template <class T> inline T __shfl_up_sync(unsigned, T value, unsigned by) {
    const unsigned lane = threadIdx.x % 32;
    return shim_of<T>(shim_meet(value), lane >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned, bool vote) {
    const ShimSlot* slots = shim_meet(unsigned(vote));
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; lane++) votes |= slots[lane].words[0] << lane;
    return votes;
}
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline bool __all_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) == ~0u; }
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
    const ShimSlot* slots = shim_meet(value);
    unsigned sum = 0;
    for (unsigned lane = 0; lane < 32; lane++) sum += slots[lane].words[0];
    return sum;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    const ShimSlot* slots = shim_meet(value);
    unsigned most = 0;
    for (unsigned lane = 0; lane < 32; lane++) most = max(most, slots[lane].words[0]);
    return most;
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
    const ShimSlot* slots = shim_meet(value);
    unsigned least = ~0u;
    for (unsigned lane = 0; lane < 32; lane++) least = min(least, slots[lane].words[0]);
    return least;
}

typedef uint64_t Shared;
inline Shared shared_address(const void* pointer) { return (Shared)pointer; }
#define DYNAMIC_SHARED(NAME) static unsigned char* const NAME = shim_shared

inline float shim_bf16(unsigned pair, unsigned which) {
    return __uint_as_float(which ? pair & 0xFFFF0000u : pair << 16);
}

// What a lane brings to a product.
struct ShimFragments {
    unsigned a[4], b[2];
};

// An element of the left operand of 16 x 16 that the lanes brought.
inline float shim_of_fragments(const ShimSlot* slots, unsigned row, unsigned k) {
    return shim_bf16(slots[row % 8 * 4 + k % 8 / 2].words[row / 8 + k / 8 * 2], k % 2);
}

// A lane's four sums of a product of depth K, whose elements `a(row, k)` and `b(k, column)` find.
template <class A, class B>
inline void shim_product(float (&sum)[4], unsigned lane, unsigned depth, A a, B b) {
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = lane / 4 + (i < 2 ? 0 : 8), column = lane % 4 * 2 + i % 2;
        double total = 0.0;
        for (unsigned k = 0; k < depth; k++) total += (double)a(row, k) * b(k, column);
        sum[i] = (float)(sum[i] + total);
    }
}
inline void mma_bf16(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const unsigned lane = threadIdx.x % 32;
    const ShimSlot* slots = shim_meet(ShimFragments{{a[0], a[1], a[2], a[3]}, {b0, b1}});
    const auto at_a = [&](unsigned row, unsigned k) { return shim_of_fragments(slots, row, k); };
    const auto at_b = [&](unsigned k, unsigned column) {
        return shim_bf16(slots[column * 4 + k % 8 / 2].words[4 + k / 8], k % 2);
    };
    shim_product(sum, lane, 16, at_a, at_b);
}
inline void mma_tf32(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const unsigned lane = threadIdx.x % 32;
    const ShimSlot* slots = shim_meet(ShimFragments{{a[0], a[1], a[2], a[3]}, {b0, b1}});
    const auto number = [](unsigned bits) { return __uint_as_float(bits & 0xFFFFE000u); };
    const auto at_a = [&](unsigned row, unsigned k) {
        return number(slots[row % 8 * 4 + k % 4].words[row / 8 + k / 4 * 2]);
    };
    const auto at_b = [&](unsigned k, unsigned column) {
        return number(slots[column * 4 + k % 4].words[4 + k / 4]);
    };
    shim_product(sum, lane, 8, at_a, at_b);
}

inline void load_matrices(unsigned (&words)[4], Shared row) {
    const unsigned lane = threadIdx.x % 32;
    if (row % 16 != 0) abort();
    const ShimSlot* slots = shim_meet(row);
    for (unsigned i = 0; i < 4; i++) {
        const Shared address = shim_of<Shared>(slots, i * 8 + lane / 4);
        memcpy(&words[i], (const char*)address + lane % 4 * 4, 4);
    }
}
inline void load_matrices_transposed(unsigned (&words)[4], Shared row) {
    const unsigned lane = threadIdx.x % 32;
    if (row % 16 != 0) abort();
    const ShimSlot* slots = shim_meet(row);
    for (unsigned i = 0; i < 4; i++) {
        unsigned short pair[2];
        for (unsigned k = 0; k < 2; k++) {
            const Shared address = shim_of<Shared>(slots, i * 8 + lane % 4 * 2 + k);
            memcpy(&pair[k], (const char*)address + lane / 4 * 2, 2);
        }
        words[i] = pair[0] | (unsigned)pair[1] << 16;
    }
}
inline unsigned load_shared(Shared address) {
    unsigned word;
    memcpy(&word, (const void*)address, 4);
    return word;
}

inline void store_shared(Shared address, unsigned word) { memcpy((void*)address, &word, 4); }

inline uint4 load_shared_four(Shared address) {
    if (address % 16 != 0) abort();
    uint4 words;
    memcpy(&words, (const void*)address, 16);
    return words;
}

struct ShimCopy {
    Shared to;
    uint64_t from;
    bool is_there;
};
// Of each thread: the groups that are under way, the last one still open.
static std::vector<std::vector<ShimCopy>> shim_copies[1024];

inline std::vector<std::vector<ShimCopy>>& shim_groups() {
    auto& groups = shim_copies[threadIdx.x];
    if (groups.empty()) groups.emplace_back();
    return groups;
}
inline void copy_begin(Shared to, uint64_t from, bool is_there) {
    if (to % 16 != 0 || from % 16 != 0) abort();
    memset((void*)to, 0xFF, 16);
    shim_groups().back().push_back({to, from, is_there});
}
inline void copy_commit() { shim_groups().emplace_back(); }
template <unsigned GROUPS> inline void copy_wait() {
    auto& groups = shim_groups();
    while (groups.size() > GROUPS + 1) {
        for (const ShimCopy& copy : groups.front()) {
            memset((void*)copy.to, 0, 16);
            if (copy.is_there) memcpy((void*)copy.to, (const void*)copy.from, 16);
        }
        groups.erase(groups.begin());
    }
}

inline float exp2_fast(float x) { return exp2f(x); }
inline float log2_fast(float x) { return log2f(x); }
inline unsigned shim_to_bf16(float number) {
    const unsigned bits = __float_as_uint(number);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
inline unsigned pack_bf16(float low, float high) {
    return shim_to_bf16(low) | shim_to_bf16(high) << 16;
}
inline unsigned round_tf32(float number) {
    const unsigned bits = __float_as_uint(number);
    return (bits & 0x7F800000u) == 0x7F800000u ? bits : (bits + 0x1000u) & 0xFFFFE000u;
}

inline void named_barrier(unsigned name, unsigned threads) { shim_named[name].wait(threads); }
inline void named_arrive(unsigned name, unsigned threads) {
    shim_named[name].arrived++;
    shim_named[name].open_if(threads);
}

// A barrier in shared memory: how many arrive in a phase, how many are still to, bytes that are still to come, and whether
// the phase is an odd one.
struct ShimBarrier {
    unsigned short all, missing;
    int bytes;

    bool is_odd() const { return all & 0x8000; }
    void end_if() {
        if (missing > 0 || bytes != 0) return;
        all ^= 0x8000;
        missing = all & 0x7FFF;
        shim_progress++;
    }
};
static_assert(sizeof(ShimBarrier) == 8, "as large as a device's");
inline ShimBarrier& shim_barrier(Shared barrier) { return *(ShimBarrier*)barrier; }

// Pieces on their way, which come when someone waits for them.
struct ShimPiece {
    const uint64_t* map;
    Shared to, barrier;
    const char* from;
    unsigned bytes, x, y, z;
};
static std::vector<ShimPiece> shim_pieces;

// What the emulated driver writes of a matrix: its address, columns, rows and count; bytes of a row and of a matrix,
// and of an element; rows of a piece.
inline void shim_come(const ShimPiece& piece) {
    if (!piece.map) {
        memcpy((void*)piece.to, piece.from, piece.bytes);
        return;
    }
    const uint64_t* map = piece.map;
    for (unsigned row = 0; row < map[7]; row++) {
        for (unsigned part = 0; part < 8; part++) {
            char* to = (char*)piece.to + row * 128 + (part ^ row % 8) * 16;
            const uint64_t column = piece.x + part * 16 / map[6], y = (uint64_t)piece.y + row;
            memset(to, 0, 16);
            if (column >= map[1] || y >= map[2] || piece.z >= map[3]) continue;
            memcpy(to, (const char*)map[0] + piece.z * map[5] + y * map[4] + column * map[6], 16);
        }
    }
}

inline void barrier_set(Shared barrier, unsigned count) {
    shim_barrier(barrier) = {(unsigned short)count, (unsigned short)count, 0};
}
inline void barriers_publish() {}
inline void barrier_arrive(Shared barrier) {
    if (shim_barrier(barrier).missing-- == 0) shim_fail("one too many arrives at a barrier");
    shim_barrier(barrier).end_if();
}
inline void barrier_expect(Shared barrier, unsigned bytes) {
    shim_barrier(barrier).bytes += bytes;
    barrier_arrive(barrier);
}
// Pieces that a barrier waits for come.
inline void shim_come_to(Shared barrier) {
    for (size_t i = 0; i < shim_pieces.size();) {
        const ShimPiece piece = shim_pieces[i];
        if (piece.barrier != barrier) {
            i++;
            continue;
        }
        shim_come(piece);
        shim_pieces.erase(shim_pieces.begin() + i);
        shim_barrier(barrier).bytes -= piece.bytes;
        shim_barrier(barrier).end_if();
    }
}
inline void barrier_wait(Shared barrier, unsigned parity) {
    shim_wait_until([&] {
        shim_come_to(barrier);
        return shim_barrier(barrier).is_odd() != (parity != 0);
    });
}
template <class Map>
inline void piece_begin(Shared to, const Map& map, unsigned x, unsigned y, unsigned z, Shared barrier) {
    if (to % 1024 != 0) abort();
    const unsigned bytes = map.words[7] * 128;
    memset((void*)to, 0xFF, bytes);
    shim_pieces.push_back({(const uint64_t*)map.words, to, barrier, nullptr, bytes, x, y, z});
}
inline void bytes_begin(Shared to, const void* from, unsigned bytes, Shared barrier) {
    if (to % 16 != 0 || (uint64_t)from % 16 != 0 || bytes % 16 != 0) abort();
    memset((void*)to, 0xFF, bytes);
    shim_pieces.push_back({nullptr, to, barrier, (const char*)from, bytes, 0, 0, 0});
}

// Who takes which number of a count, as if all blocks ran at once: by chance, another one in each launch. Each takes one
// of the last.
inline unsigned take_number(unsigned* count, unsigned numbers) {
    static unsigned block, next, launches;
    if (block != blockIdx.x || *count == 0) next = 0;
    if (blockIdx.x == 0 && next == 0) {
        if (*count != 0) shim_fail("a count that an earlier launch left");
        launches++;
    }
    block = blockIdx.x;
    *count = (*count + 1) % numbers;
    numbers -= gridDim.x;
    const auto taker = [&](unsigned number) { return (number + 1) * (2654435761u + 2 * launches) >> 16; };
    while (next < numbers && taker(next) % gridDim.x != block) next++;
    return next < numbers ? next++ : numbers + block;
}
template <unsigned COUNT = 24> inline void registers_give() {}
template <unsigned COUNT> inline void registers_take() {}

// The products of four warps, each of which has all it needs: its own rows of the left operand.
inline void group_publish() {}
inline void group_fence() {}
inline void group_commit() {}
template <unsigned SETS> inline void group_wait_but() {}
template <class Sums> inline void pin(Sums&) {}
inline float shim_of_tile(Shared tile, unsigned row, unsigned channel) {
    if (tile % 1024 != 0) abort();
    const Shared address = tile + row * 128 + (channel / 8 ^ row % 8) * 16 + channel % 8 * 2;
    unsigned short bits;
    memcpy(&bits, (const void*)address, 2);
    return __uint_as_float((unsigned)bits << 16);
}
template <unsigned TILES, class A, class B>
inline void shim_group_product(float (&sums)[TILES][4], A a, B b) {
    const unsigned lane = threadIdx.x % 32;
    for (unsigned n = 0; n < TILES; n++) {
        const auto b_of_tile = [&](unsigned k, unsigned column) { return b(k, n * 8 + column); };
        shim_product(sums[n], lane, 16, a, b_of_tile);
    }
}
template <bool ADDS, unsigned TILES>
inline void group_rows(float (&sums)[TILES][4], Shared left, Shared right, unsigned step) {
    if (!ADDS) memset(sums, 0, sizeof sums);
    const unsigned first = threadIdx.x / 32 % 4 * 16;
    const auto a = [&](unsigned row, unsigned k) { return shim_of_tile(left, first + row, step * 16 + k); };
    const auto b = [&](unsigned k, unsigned n) { return shim_of_tile(right, n, step * 16 + k); };
    shim_group_product(sums, a, b);
}
template <bool ADDS, unsigned TILES>
inline void group_rows(float (&sums)[TILES][4], const unsigned (&left)[4], Shared right, unsigned step) {
    if (!ADDS) memset(sums, 0, sizeof sums);
    const ShimSlot* slots = shim_meet(ShimFragments{{left[0], left[1], left[2], left[3]}, {0, 0}});
    const auto a = [&](unsigned row, unsigned k) { return shim_of_fragments(slots, row, k); };
    const auto b = [&](unsigned k, unsigned n) { return shim_of_tile(right, n, step * 16 + k); };
    shim_group_product(sums, a, b);
}
template <unsigned TILES>
inline void group_columns(float (&sums)[TILES][4], const unsigned (&left)[4], Shared right, unsigned step) {
    const ShimSlot* slots = shim_meet(ShimFragments{{left[0], left[1], left[2], left[3]}, {0, 0}});
    const auto a = [&](unsigned row, unsigned k) { return shim_of_fragments(slots, row, k); };
    const auto b = [&](unsigned k, unsigned n) { return shim_of_tile(right, step * 16 + k, n); };
    shim_group_product(sums, a, b);
}

// The same of tf32: a tile is two pieces, and what lies below its numbers does not count.
inline float shim_of_wide_tile(Shared tile, unsigned row, unsigned channel) {
    if (tile % 1024 != 0) abort();
    const unsigned in_panel = channel % 32;
    const Shared piece = tile + channel / 32 * 8192;
    unsigned bits;
    memcpy(&bits, (const void*)(piece + row * 128 + (in_panel / 4 ^ row % 8) * 16 + in_panel % 4 * 4), 4);
    return __uint_as_float(bits & 0xFFFFE000u);
}
// sums += left times the rows of a right operand; `b` is a number of those.
template <unsigned TILES, class B>
inline void shim_group_product_tf32(float (&sums)[TILES][4], const unsigned (&left)[4], B b) {
    const ShimSlot* slots = shim_meet(ShimFragments{{left[0], left[1], left[2], left[3]}, {0, 0}});
    const unsigned lane = threadIdx.x % 32;
    const auto a = [&](unsigned row, unsigned k) {
        return __uint_as_float(slots[row % 8 * 4 + k % 4].words[row / 8 + k / 4 * 2] & 0xFFFFE000u);
    };
    for (unsigned n = 0; n < TILES; n++) {
        const auto b_of_tile = [&](unsigned k, unsigned column) { return b(k, n * 8 + column); };
        shim_product(sums[n], lane, 8, a, b_of_tile);
    }
}
template <bool ADDS>
inline void group_rows_tf32(float (&sums)[8][4], const unsigned (&left)[4], Shared right, unsigned step) {
    if (!ADDS) memset(sums, 0, sizeof sums);
    shim_group_product_tf32(sums, left, [&](unsigned k, unsigned n) { return shim_of_wide_tile(right, n, step * 8 + k); });
}
template <unsigned TILES>
inline void group_add_tf32(float (&sums)[TILES][4], const unsigned (&left)[4], Shared right, unsigned step) {
    if (step >= 4) abort();
    shim_group_product_tf32(sums, left, [&](unsigned k, unsigned n) { return shim_of_wide_tile(right, n, step * 8 + k); });
}
template <unsigned TILES>
inline void group_add_tf32(float (&sums)[TILES][4], Shared left, Shared right, unsigned step) {
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = threadIdx.x / 32 % 4 * 16 + g;
    unsigned numbers[4];
    for (unsigned i = 0; i < 4; i++) {
        numbers[i] = __float_as_uint(shim_of_wide_tile(left, row + i % 2 * 8, step * 8 + t + i / 2 * 4));
    }
    group_add_tf32(sums, numbers, right, step);
}
inline void store_shared_four(Shared address, unsigned a, unsigned b, unsigned c, unsigned d) {
    if (address % 16 != 0) abort();
    const unsigned words[4] = {a, b, c, d};
    memcpy((void*)address, words, 16);
}
