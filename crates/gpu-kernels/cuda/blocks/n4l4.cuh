// Blocks of n4l4: 4-bit codes of the normalised first moment beside 4-bit codes of the second; twin of
// optimizer/src/cpu/n4l4.rs.
#pragma once

#include "blocks/grid.cuh"
#include "codec/n4l4.cuh"

struct N4l4State {
    static constexpr bool DECAYS_LAST = false;
    static constexpr bool HAS_BIAS = false;
    static constexpr u32 V_RUN = N4L4_V_BLOCK / LANES;
    static constexpr u32 M_RUN = N4L4_M_BLOCK / LANES;
    typedef Levels<true, 4, V_RUN> OwnLevels;
    static_assert(!(KINDS & N4L4_KINDS) || OwnLevels::WORDS <= SHARED_TABLE_WORDS, "room");
    u64 codes;
    u64 m_absmax;
    u64 v_endpoints;

    __device__ N4l4State(const Step&, const Seat& seat) {
        const u64 length = seat.chunk.length;
        codes = seat.chunk.state + seat.index;
        const u64 scales = seat.chunk.state + padded(length);
        m_absmax = scales + seat.index / N4L4_M_BLOCK * 2;
        v_endpoints = scales + padded(blocks_of(length, N4L4_M_BLOCK) * 2)
            + seat.index / N4L4_V_BLOCK * 4;
    }

    __device__ Moments4 decode(const Seat& seat) const {
        const bool is_there = seat.count > 0;
        const u32 ends = seat.has_block(N4L4_V_BLOCK) ? load_one<4>(v_endpoints, 0) : 0;
        const u32 word = is_there ? load_one<4>(codes, 0) : 0;
        const float unit = n4l4_unit(is_there ? load_one<2>(m_absmax, 0) : 0);
        const OwnLevels levels(seat.room.tables);
        levels.fill(Grid(ends & 0xFFFF, ends >> 16, 4));
        Moments4 moments;
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            const u32 code = word >> (8 * k) & 0xFF;
            const float r = levels.roots[code >> 4];
            const float m = __fmul_rn(__fmul_rn(__int2float_rn(n4l4_integer(code)), unit), r);
            moments.v[k] = levels.values[code >> 4];
            moments.m[k] = within(m, __fmul_rn(seat.group.ratio_max_before, r));
        }
        return moments;
    }

    __device__ void encode(const Seat& seat, const Moments4& moments) const {
        const u32 ends = agreed_endpoints<true, V_RUN>(seat, moments.v);
        const Grid grid(ends & 0xFFFF, ends >> 16, 4);
        const OwnLevels levels(seat.room.tables);
        levels.fill(grid);
        u32 v_codes[LANES], largest = 0;
        float q[LANES], uniforms[LANES];
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            const Uniforms both = seat.uniforms<true>(k);
            uniforms[k] = N4L4_NEAREST ? 0.5f : both.first;
            v_codes[k] = seat.has(k) ? levels.code(grid, moments.v[k], both.second) : 0;
            const float r = levels.roots[v_codes[k]];
            const bool is_zero = r == 0.0f || !seat.has(k);
            q[k] = is_zero ? 0.0f : within(__fdiv_rn(moments.m[k], r), seat.group.ratio_max);
            largest = max(largest, as_bits(q[k]) & MAGNITUDE);
        }
        largest = folded<Largest, M_RUN>(seat.room, largest);
        if (seat.count <= 0) return;
        const u32 absmax = n4l4_stored_absmax(as_float(largest));
        const float inverse_unit = n4l4_inverse_unit(absmax);
        u32 word = 0;
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            const u32 code = n4l4_code(q[k], inverse_unit, uniforms[k]) | v_codes[k] << 4;
            if (seat.has(k)) word |= code << (8 * k);
        }
        store_one<4>(codes, 0, word);
        if (threadIdx.x % M_RUN == 0) store_one<2>(m_absmax, 0, absmax);
        if (threadIdx.x % V_RUN == 0) store_one<4>(v_endpoints, 0, ends);
    }

    __device__ void finish(const Step&, const Seat&) const {}
};
