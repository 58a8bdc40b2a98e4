// Second moments on grids of logarithms, of ustate1q; twin of optimizer/src/cpu/grid.rs. The levels of a
// block lie in memory that its lanes share, each with a number that belongs to it.
#pragma once

#include "blocks/seat.cuh"
#include "codec/one_q.cuh"

struct alignas(8) Level {
    float value;
    // What turns a normalised update into a first moment, or a first moment into one.
    float unit;
};

// Levels of the blocks of a warp. One more lies above those of each block: infinity, which nothing is
// rounded up to, with flags in place of its unit.
template <bool REPAIRED, u32 BITS, u32 BLOCK>
struct Levels {
    static constexpr u32 COUNT = 1u << BITS;
    static constexpr u32 STRIDE = COUNT + 1;
    static constexpr u32 TEAM_BLOCKS = BLOCK < TEAM_ELEMENTS ? TEAM_ELEMENTS / BLOCK : 1;
    static constexpr u32 WORDS = THREADS / WARP_LANES * TEAM_BLOCKS * STRIDE * 2;
    // Levels ascend for certain; the lowest one is zero; code 0 stands for zero.
    static constexpr u32 ASCENDS = 1, HAS_DEAD = 2, HAS_ZERO = 4;
    Level* team;

    __device__ explicit Levels(u32* tables)
        : team(reinterpret_cast<Level*>(tables) + team_of_thread() * TEAM_BLOCKS * STRIDE) {}

    // The levels of a quad's block.
    __device__ const Level* of(u64 quad) const {
        return team + (u32)quad % TEAM_ELEMENTS / BLOCK * STRIDE;
    }
    __device__ static u32 flags(const Level* levels) { return as_bits(levels[COUNT].unit); }

    // Overwrites all levels, from the endpoints of each block and the unit of each level.
    template <class Endpoints, class Unit>
    __device__ void fill(const Endpoints& endpoints_of, const Unit& unit_of) const {
        __syncwarp();
#pragma unroll 1
        for (u32 number = lane_of_thread(); number < TEAM_BLOCKS * COUNT; number += WARP_LANES) {
            const u32 block = number / COUNT, code = number % COUNT;
            const u32 ends = endpoints_of(block);
            const Grid grid(ends & 0xFFFF, ends >> 16, BITS);
            const float value = grid.template value<REPAIRED>(code);
            Level* const levels = team + block * STRIDE;
            levels[code] = Level{value, unit_of(value)};
            if (code == 0) {
                const u32 flags = (grid.is_ascending() ? ASCENDS : 0)
                    | (REPAIRED && value == 0.0f ? HAS_DEAD : 0) | (grid.has_zero ? HAS_ZERO : 0);
                levels[COUNT] = Level{as_float(INFINITE), as_float(flags)};
            }
        }
        __syncwarp();
    }

    // The code of v: that of the last level below it, or the next. Most blocks ASCEND and have no
    // other flag, which makes things simple.
    template <bool IS_SIMPLE>
    __device__ static u32 code(const Level* levels, u32 flags, float v, float uniform) {
        u32 lower = IS_SIMPLE || flags & ASCENDS ? bisected(levels, v) : counted(levels, flags, v);
        if (!IS_SIMPLE && flags & HAS_ZERO) lower = max(lower, 1u);
        const float a = levels[lower].value, b = levels[lower + 1].value;
        const bool is_upper = __fmul_rn(uniform, __fsub_rn(b, a)) < __fsub_rn(v, a);
        const u32 code = lower + (is_upper ? 1u : 0u);
        return !IS_SIMPLE && is_kept_as_zero<REPAIRED>(v) ? 0 : code;
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
    u32 least[QUADS], most[QUADS], zeros[QUADS] = {}, all_least = INFINITE;
#pragma unroll
    for (u32 j = 0; j < QUADS; j++) {
        least[j] = INFINITE;
        most[j] = 0;
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            if (!seat.has(j, k)) continue;
            least[j] = min(least[j], as_bits(moments[j].v[k]));
            most[j] = max(most[j], as_bits(moments[j].v[k]));
        }
        all_least = min(all_least, least[j]);
    }
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
