// Second moments on grids of logarithms, of ustate1q; twin of optimizer/src/cpu/grid.rs.
//
// The levels of a team's blocks lie where its lanes have them at hand. With few of them each lane holds one in
// registers, and lanes ask each other (LaneLevels); else, and where levels are not plain, they lie in
// shared memory, each with a number that belongs to it (Levels).
#pragma once

#include "blocks/seat.cuh"
#include "codec/one_q.cuh"

struct alignas(8) Level {
    float value;
    // What turns a first moment into a normalised update; or, to decode, the root.
    float unit;
};

// Levels of the blocks of a warp in shared memory. One more lies above those of each block: infinity, which
// nothing is rounded up to, with flags in place of its unit.
template <bool REPAIRED, u32 BITS, u32 BLOCK>
struct Levels {
    static constexpr u32 COUNT = 1u << BITS;
    static constexpr u32 STRIDE = COUNT + 1;
    static constexpr u32 TEAM_BLOCKS = BLOCK < TEAM_ELEMENTS ? TEAM_ELEMENTS / BLOCK : 1;
    static constexpr u32 WORDS = THREADS / WARP_LANES * TEAM_BLOCKS * STRIDE * 2;
    // Whether lanes hold them too, and those of a row are of one block.
    static constexpr bool ARE_IN_LANES = BLOCK >= ROW_ELEMENTS && COUNT * TEAM_BLOCKS <= WARP_LANES;
    // Levels ascend for certain; code 0 stands for zero.
    static constexpr u32 ASCENDS = 1, HAS_ZERO = 2;
    Level* team;

    __device__ explicit Levels(u32* tables)
        : team(reinterpret_cast<Level*>(tables) + team_of_thread() * TEAM_BLOCKS * STRIDE) {}

    // The levels of a quad's block.
    __device__ const Level* of(u64 quad) const {
        return team + (u32)quad % TEAM_ELEMENTS / BLOCK * STRIDE;
    }

    // Overwrites all levels, from the endpoints of each block and the unit of each root; returns whether
    // any level of the team is zero.
    template <class Endpoints, class Unit>
    __device__ bool fill(const Endpoints& endpoints_of, const Unit& unit_of) const {
        bool has_dead = false;
        __syncwarp();
#pragma unroll 1
        for (u32 number = lane_of_thread(); number < TEAM_BLOCKS * COUNT; number += WARP_LANES) {
            const u32 block = number / COUNT, code = number % COUNT;
            const Grid<> grid(endpoints_of(block), BITS);
            const float root = grid.template root<REPAIRED>(code);
            has_dead |= root == 0.0f;
            Level* const levels = team + block * STRIDE;
            levels[code] = Level{__fmul_rn(root, root), unit_of(root)};
            if (code == 0) {
                const u32 flags = (grid.is_ascending() ? ASCENDS : 0) | (grid.has_zero ? HAS_ZERO : 0);
                levels[COUNT] = Level{as_float(INFINITE), as_float(flags)};
            }
        }
        __syncwarp();
        return __any_sync(0xFFFFFFFFu, has_dead);
    }

    // The code of v: that of the last level below it, or the next.
    __device__ static u32 code(const Level* levels, float v, float uniform) {
        const u32 flags = as_bits(levels[COUNT].unit);
        u32 lower = flags & ASCENDS ? bisected(levels, v) : counted(levels, flags, v);
        if (flags & HAS_ZERO) lower = max(lower, 1u);
        const float a = levels[lower].value, b = levels[lower + 1].value;
        const u32 sign = upper_sign(__fsub_rn(v, a), __fsub_rn(b, a), uniform);
        return is_kept_as_zero<REPAIRED>(v) ? 0 : lower + (sign >> 31);
    }

  private:
    // How many levels, that of zero apart, v has reached besides the first of them.
    __device__ static u32 counted(const Level* levels, u32 flags, float v) {
        const u32 has_zero = flags & HAS_ZERO ? 1 : 0;
        u32 lower = has_zero;
#pragma unroll 1
        for (u32 next = has_zero + 1; next < COUNT; next++) {
            lower += levels[next].value <= v ? 1u : 0u;
        }
        return lower;
    }

    // The same number, if levels ascend. That of zero is the lowest then, and v lies above it.
    __device__ static u32 bisected(const Level* levels, float v) {
        u32 lower = 0;
#pragma unroll
        for (u32 step = COUNT / 2; step > 0; step /= 2) {
            if (levels[lower + step].value <= v) lower += step;
        }
        return lower;
    }
};

// The level that a lane holds, of COUNT of each of TEAM_BLOCKS blocks.
template <bool REPAIRED, u32 BITS, u32 BLOCK>
struct LaneLevels {
    typedef Levels<REPAIRED, BITS, BLOCK> InMemory;
    static constexpr u32 COUNT = InMemory::COUNT, TEAM_BLOCKS = InMemory::TEAM_BLOCKS;

    // The block and the code of this lane.
    __device__ static u32 block() { return TEAM_BLOCKS == 1 ? 0 : lane_of_thread() / COUNT % TEAM_BLOCKS; }
    __device__ static u32 code() { return lane_of_thread() % COUNT; }
    // Where levels of the block of quad j begin.
    __device__ static u32 base(u32 j) { return TEAM_BLOCKS == 1 ? 0 : j * COUNT; }
    // Whether this lane is the first of its block.
    __device__ static bool is_first() { return code() == 0 && lane_of_thread() < TEAM_BLOCKS * COUNT; }

    // The root of its level, from the endpoints of its block.
    __device__ static float root(u32 endpoints) {
        return Grid<>(endpoints, BITS).template root<REPAIRED>(code());
    }
};

// The level below a number is guessed from its logarithm, and its code is found out to be right or not.
//
// The logarithm is off by 2^-18 at most, and what is made of it by 2^-21 of COUNT levels; by somewhat more a
// guess is put lower, so that hardly any lies above its number. Of a number just above a level, as many are that
// moved a little from one, the guess may be the level below, a; b and c are the next, and w and w' how far they are from
// each other. Then the number's distance d from a is w or more, and as one between a and b it has the code of b. Between b and
// c it has the same unless its uniform u is below (d - w) / w'. Levels with steps from STEP_MIN on grow by more than
// 5.4e-3, of which 3.2e-6 each may be wrong, so w' is above w, and beyond c d is above 2 w. So the code is that of b
// for certain where d is at most u w + NEAR w, with NEAR below 1 by more than d and w are rounded. Of a right guess, hardly
// any number is farther.
template <bool REPAIRED, u32 BITS, class Lanes>
struct Guesses {
    static constexpr u32 COUNT = Lanes::COUNT;
    static constexpr float NEAR = 1.0f - 1.0f / 1048576.0f;
    static constexpr float STEP_MIN = 1.0f / 256.0f;
    // A sum with this number, rounded down, counts wholes in its low bits.
    static constexpr float COUNTER = 8388608.0f;
    Grid<false> grid;
    // The level of this lane, and how far the next one is.
    float root;
    float value;
    float width;
    // Of this lane's block.
    float slope;
    float start;

    // From the endpoints of this lane's block, none of whose levels stands for none.
    __device__ explicit Guesses(u32 endpoints) : grid(endpoints, BITS), root(grid.root_at(Lanes::code())) {
        value = __fmul_rn(root, root);
        width = __fsub_rn(__shfl_down_sync(0xFFFFFFFFu, value, 1), value);
        if (Lanes::code() == COUNT - 1) width = as_float(INFINITE);
        slope = __fmul_rn(rough_inverse(grid.step), 0.5f / COUNT);
        start = __fmaf_rn(__fmaf_rn(grid.lowest, -2.0f, -power_of_two(-16)), slope, -power_of_two(-20));
    }

    // Whether this lane's level is above zero, and all are far enough apart.
    __device__ bool is_plain() const { return !is_kept_as_zero<REPAIRED>(value) && grid.step >= STEP_MIN; }

    // The guess of one block: the number of the lane that holds a level, in the low bits of a word.
    struct OfBlock {
        float slope;
        float start;
        float counter;

        __device__ u32 lane(float v) const {
            const float position = saturated(quick_log2(v), slope, start);
            return as_bits(fused_down(position, (float)COUNT, counter));
        }
    };
    __device__ OfBlock of(u32 j) const {
        const u32 base = Lanes::base(j);
        return OfBlock{__shfl_sync(0xFFFFFFFFu, slope, base), __shfl_sync(0xFFFFFFFFu, start, base),
                       COUNTER + (float)base};
    }
};

// The endpoints of this lane's block, from the bits of the smallest and the largest second moment of the block of
// each quad, all of which are normal numbers. Of two neighbouring lanes each finds one: even ones the lower, odd ones the
// upper, as the lower one of the negative.
template <class Lanes>
__device__ __forceinline__ u32 own_endpoints(const u32* least, const u32* most) {
    const bool is_odd = (lane_of_thread() & 1) != 0;
    const u32 first = is_odd ? most[0] : least[0], second = is_odd ? most[1] : least[1];
    const u32 own = outward_endpoint<true>(Lanes::block() == 0 ? first : second, is_odd ? 0x8000u : 0);
    const u32 other = __shfl_xor_sync(0xFFFFFFFFu, own, 1);
    return is_odd ? other | own << 16 : own | other << 16;
}

// The endpoints of the block of each quad, from the bits of its smallest second moment that is not
// zero, of its largest, and whether one is zero.
template <bool REPAIRED>
__device__ __forceinline__ void endpoints_of_quads(const u32* least, const u32* most, const u32* zeros,
                                                   u32* ends) {
    if constexpr (!REPAIRED) {
        for (u32 j = 0; j < QUADS; j++) ends[j] = published_endpoints(least[j], most[j]);
        return;
    }
    // Of four neighbouring lanes, whose blocks are the same, each finds one endpoint of one quad: even ones
    // the lower, odd ones the upper, as the lower one of the negative.
    const u32 lane = lane_of_thread();
    const bool is_second = (lane & 2) != 0;
    const u32 sign = lane & 1 ? 0x8000u : 0;
    const u32 own_least = is_second ? least[1] : least[0], own_most = is_second ? most[1] : most[0];
    const u32 own_zeros = is_second ? zeros[1] : zeros[0];
    const u32 own = outward_endpoint(sign ? own_most : own_least, sign);
    const u32 other = __shfl_xor_sync(0xFFFFFFFFu, own, 1);
    const u32 lo = sign ? other : own, hi = sign ? own : other;
    u32 both = lo | hi << 16;
    if (own_zeros) both = hi | (lo == hi ? binary16_next_below(lo) : lo) << 16;
    if (own_least == INFINITE) both = FRESH_ENDPOINT | FRESH_ENDPOINT << 16;
    const u32 beside = __shfl_xor_sync(0xFFFFFFFFu, both, 2);
    ends[0] = is_second ? beside : both;
    ends[1] = is_second ? both : beside;
}

// The same from their second moments.
template <bool REPAIRED, u32 BLOCK, class Seat>
__device__ __forceinline__ void agreed_endpoints(const Seat& seat, const Quad* moments, u32* ends) {
    u32 least[QUADS], most[QUADS], zeros[QUADS] = {};
    extremes_of<false>(seat, moments, least, most);
    for (u32 j = 0; j < QUADS; j++) least[j] = min(least[j], INFINITE);
    const u32 all_least = min(least[0], least[1]);
    fold<Largest, BLOCK>(seat.room, most);
    if constexpr (REPAIRED) {
        const bool has_zeros = BLOCK > TEAM_ELEMENTS || all_least <= as_bits(ZERO_MAX);
        if (__any_sync(0xFFFFFFFFu, has_zeros)) {
#pragma unroll
            for (u32 j = 0; j < QUADS; j++) {
                least[j] = INFINITE;
#pragma unroll
                for (u32 k = 0; k < LANES; k++) {
                    if (!seat.has(j, k)) continue;
                    const bool is_zero = is_kept_as_zero<REPAIRED>(moments[j].v[k]);
                    if (is_zero) zeros[j] = 1;
                    least[j] = min(least[j], is_zero ? INFINITE : as_bits(moments[j].v[k]));
                }
            }
            fold<Largest, BLOCK>(seat.room, zeros);
        }
    }
    fold<Smallest, BLOCK>(seat.room, least);
    endpoints_of_quads<REPAIRED>(least, most, zeros, ends);
}
