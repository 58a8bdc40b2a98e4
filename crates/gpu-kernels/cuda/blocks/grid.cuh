// Second moments on grids of logarithms, which ustate1q and n4l4 share; twin of
// optimizer/src/cpu/grid.rs. The levels of a block lie in memory that its threads share.
#pragma once

#include "blocks/seat.cuh"
#include "codec/one_q.cuh"

// Levels of the block of this thread, and their roots.
template <bool REPAIRED, u32 BITS, u32 RUN>
struct Levels {
    static constexpr u32 COUNT = 1u << BITS;
    static constexpr u32 WORDS = THREADS / RUN * 2 * COUNT;
    float* values;
    float* roots;

    __device__ explicit Levels(u32* tables) {
        values = reinterpret_cast<float*>(tables) + threadIdx.x / RUN * 2 * COUNT;
        roots = values + COUNT;
    }

    __device__ void fill(const Grid& grid) const {
        wait_for_run<RUN>();
        for (u32 code = threadIdx.x % RUN; code < COUNT; code += RUN) {
            const float value = grid.template value<REPAIRED>(code);
            values[code] = value;
            roots[code] = __fsqrt_rn(value);
        }
        wait_for_run<RUN>();
    }

    // The code of v: that of the last level below it, or the next.
    __device__ u32 code(const Grid& grid, float v, float uniform) const {
        if (is_kept_as_zero<REPAIRED>(v)) return 0;
        const u32 lower = grid.is_ascending() ? bisected(grid, v) : counted(grid, v);
        if (lower + 1 >= COUNT) return lower;
        const float a = values[lower], b = values[lower + 1];
        const bool is_upper = __fmul_rn(uniform, __fsub_rn(b, a)) < __fsub_rn(v, a);
        return lower + (is_upper ? 1u : 0u);
    }

  private:
    // How many levels, that of zero apart, v has reached besides the first of them.
    __device__ u32 counted(const Grid& grid, float v) const {
        u32 lower = grid.has_zero;
        for (u32 next = grid.has_zero + 1; next < COUNT; next++) {
            lower += values[next] <= v ? 1u : 0u;
        }
        return lower;
    }

    // The same number, if levels ascend. That of zero is the lowest then, and v lies above it.
    __device__ u32 bisected(const Grid& grid, float v) const {
        u32 lower = 0;
#pragma unroll
        for (u32 step = COUNT / 2; step > 0; step /= 2) {
            if (values[lower + step] <= v) lower += step;
        }
        return max(lower, grid.has_zero);
    }
};

// The endpoints of the block of this thread, from its own elements and those of the others.
template <bool REPAIRED, u32 RUN>
__device__ __forceinline__ u32 agreed_endpoints(const Seat& seat, const float* v) {
    u32 least = INFINITE, most = 0, zeros = 0;
#pragma unroll
    for (u32 k = 0; k < LANES; k++) {
        if (!seat.has(k)) continue;
        const bool is_zero = is_kept_as_zero<REPAIRED>(v[k]);
        if (is_zero) zeros = 1;
        if (!is_zero) least = min(least, as_bits(v[k]));
        most = max(most, as_bits(v[k]));
    }
    least = folded<Smallest, RUN>(seat.room, least);
    most = folded<Largest, RUN>(seat.room, most);
    if constexpr (!REPAIRED) return published_endpoints(least, most);
    zeros = folded<Largest, RUN>(seat.room, zeros);
    // Even threads find the lower endpoint, odd ones the upper, as the lower one of the negative.
    const u32 sign = threadIdx.x & 1 ? 0x8000u : 0;
    const u32 own = outward_endpoint(sign ? most : least, sign);
    const u32 other = exchanged<1>(seat.room, own);
    const u32 lo = sign ? other : own, hi = sign ? own : other;
    if (least == INFINITE) return FRESH_ENDPOINT | FRESH_ENDPOINT << 16;
    if (zeros == 0) return lo | hi << 16;
    return hi | (lo == hi ? binary16_next_below(lo) : lo) << 16;
}
