// Blocks of block8: 8-bit codes of two maps, an absmax per block; twin of
// optimizer/src/cpu/block8.rs.
#pragma once

#include "blocks/seat.cuh"
#include "codec/dynamic_map.cuh"

struct Block8State {
    static constexpr bool DECAYS_LAST = !BLOCK8_REPAIRED;
    static constexpr bool HAS_BIAS = false;
    static constexpr u32 RUN = BLOCK8_BLOCK / LANES;
    u64 m_codes;
    u64 v_codes;
    u64 m_absmax;
    u64 v_absmax;
    MapTables first;
    MapTables second;

    __device__ Block8State(const Step& step, const Seat& seat) {
        const u64 length = seat.chunk.length, codes = padded(length);
        const u64 block = seat.index / BLOCK8_BLOCK;
        m_codes = seat.chunk.state + seat.index;
        v_codes = m_codes + codes;
        m_absmax = seat.chunk.state + 2 * codes + block * 4;
        v_absmax = m_absmax + padded(blocks_of(length, BLOCK8_BLOCK) * 4);
        first = MapTables{seat.room.tables, step.maps_are_fine != 0};
        second = MapTables{seat.room.tables + MAP_WORDS, step.maps_are_fine != 0};
        for (u32 word = threadIdx.x; word < 2 * MAP_WORDS; word += THREADS) {
            seat.room.tables[word] = step.maps[word];
        }
        __syncthreads();
    }

    __device__ Moments4 decode(const Seat& seat) const {
        Moments4 moments = {};
        if (seat.count <= 0) return moments;
        const u32 m_word = load_one<4>(m_codes, 0), v_word = load_one<4>(v_codes, 0);
        const float m_scale = as_float(load_one<4>(m_absmax, 0));
        const float v_scale = as_float(load_one<4>(v_absmax, 0));
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            const float m = __fmul_rn(first.entry(m_word >> (8 * k) & 0xFF), m_scale);
            const float v = __fmul_rn(second.entry(v_word >> (8 * k) & 0xFF), v_scale);
            moments.m[k] = m;
            moments.v[k] = BLOCK8_REPAIRED ? at_least_ratio(m, v, seat.group) : v;
        }
        return moments;
    }

    __device__ void encode(const Seat& seat, const Moments4& moments) const {
        u32 m_largest = 0, v_largest = 0;
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            if (!seat.has(k)) continue;
            m_largest = max(m_largest, as_bits(moments.m[k]) & MAGNITUDE);
            v_largest = max(v_largest, as_bits(moments.v[k]) & MAGNITUDE);
        }
        m_largest = folded<Largest, RUN>(seat.room, m_largest);
        v_largest = folded<Largest, RUN>(seat.room, v_largest);
        if (seat.count <= 0) return;
        const float m_scale = as_float(m_largest), v_scale = as_float(v_largest);
        u32 m_word = 0, v_word = 0;
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            if (!seat.has(k)) continue;
            const float m = m_largest == 0 ? 0.0f : __fdiv_rn(moments.m[k], m_scale);
            const float v = v_largest == 0 ? 0.0f : __fdiv_rn(moments.v[k], v_scale);
            m_word |= first.code(m) << (8 * k);
            v_word |= second.code(v) << (8 * k);
        }
        store_one<4>(m_codes, 0, m_word);
        store_one<4>(v_codes, 0, v_word);
        if (threadIdx.x % RUN == 0) {
            store_one<4>(m_absmax, 0, m_largest);
            store_one<4>(v_absmax, 0, v_largest);
        }
    }

    __device__ void finish(const Step&, const Seat&) const {}
};
