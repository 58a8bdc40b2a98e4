// Blocks of block8: 8-bit codes of two maps, an absmax per block; twin of
// optimizer/src/cpu/block8.rs.
#pragma once

#include "blocks/seat.cuh"
#include "codec/dynamic_map.cuh"
#include "codec/inverse.cuh"

struct Block8State {
    static constexpr bool DECAYS_LAST = !BLOCK8_REPAIRED;
    static constexpr bool HAS_BIAS = false;
    // What extremes are found of.
    static constexpr bool BY_ROOT = false;
    // So small a second moment has no quick root: 2^-100, or somewhat above.
    static constexpr float TOO_SMALL = 7.888609052210118e-31f;
    // Elements of the blocks that threads agree on.
    static constexpr u32 BLOCK = BLOCK8_BLOCK;
    Tables tables;

    // Arrays: codes of m, of v, absmaxes of m, of v.
    __device__ static void place(Chunk& chunk) {
        const u64 codes = padded(chunk.length), block = (u64)chunk.index / BLOCK8_BLOCK;
        chunk.arrays[0] = chunk.state + chunk.index;
        chunk.arrays[1] = chunk.arrays[0] + codes;
        chunk.arrays[2] = chunk.state + 2 * codes + block * 4;
        chunk.arrays[3] = chunk.arrays[2] + padded(blocks_of(chunk.length, BLOCK8_BLOCK) * 4);
    }

    // What is stored of a thread's quads.
    struct Stored {
        u32 m_words[QUADS];
        u32 v_words[QUADS];
        float m_scales[QUADS];
        float v_scales[QUADS];

        template <class Seat>
        __device__ explicit Stored(const Seat& seat) {
#pragma unroll
            for (u32 j = 0; j < QUADS; j++) {
                m_words[j] = v_words[j] = 0;
                m_scales[j] = v_scales[j] = 0.0f;
                if (!seat.has(j, 0)) continue;
                const u64 block = seat.template block<BLOCK8_BLOCK>(j) * 4;
                m_words[j] = load_one<4>(seat.chunk.arrays[0] + seat.quad(j), 0);
                v_words[j] = load_one<4>(seat.chunk.arrays[1] + seat.quad(j), 0);
                m_scales[j] = as_float(load_one<4>(seat.chunk.arrays[2] + block, 0));
                v_scales[j] = as_float(load_one<4>(seat.chunk.arrays[3] + block, 0));
            }
        }
    };

    __device__ Block8State(const Step& step, const Chunk&, const Group&, SharedRoom& room)
        : tables{room.tables, step.maps} {
        tables.fill();
        __syncthreads();
    }

    // What all quads of a thread are decoded with: nothing.
    struct Decoding {
        static constexpr bool is_plain = true;
    };

    template <class Seat>
    __device__ static Decoding begin_decode(const Stored&, const Seat&) {
        return {};
    }

    template <class Seat>
    __device__ void decode(Decoding, const Stored& stored, const Seat& seat, u32 j, Quad& moments) const {
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            const u32 m_code = stored.m_words[j] >> (8 * k) & 0xFF;
            const u32 v_code = stored.v_words[j] >> (8 * k) & 0xFF;
            const float m = __fmul_rn(tables.first(m_code), stored.m_scales[j]);
            const float v = __fmul_rn(tables.second(v_code), stored.v_scales[j]);
            moments.m[k] = m;
            moments.v[k] = BLOCK8_REPAIRED ? at_least_ratio(m, v, seat.group) : v;
        }
    }

    // Stores moments, and whatever else is to be stored with them.
    template <class Seat, class Store>
    __device__ bool encode(const Step& step, const Seat& seat, const Quad* moments, const Store& store_others) const {
        store_others();
        u32 m_largest[QUADS], v_least[QUADS], v_largest[QUADS];
        extremes_of<BY_ROOT>(seat, moments, v_least, v_largest);
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            float m = 0.0f;
#pragma unroll
            for (u32 k = 0; k < LANES; k++) m = seat.has(j, k) ? fmaxf(m, fabsf(moments[j].m[k])) : m;
            m_largest[j] = as_bits(m);
        }
        fold<Largest, BLOCK8_BLOCK>(seat.room, m_largest);
        fold<Largest, BLOCK8_BLOCK>(seat.room, v_largest);
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const Inverse m_inverse(m_largest[j]), v_inverse(v_largest[j]);
            u32 m_word, v_word;
            if (step.maps_are_fine && m_inverse.is_quick() && v_inverse.is_quick()) {
                m_word = quick_codes<true>(m_inverse, moments[j].m);
                v_word = quick_codes<false>(v_inverse, moments[j].v);
            } else {
                m_word = codes<true>(step, m_inverse.absmax, moments[j].m);
                v_word = codes<false>(step, v_inverse.absmax, moments[j].v);
            }
            if constexpr (!Seat::FULL) {
                const u32 rest = (u32)min(max(seat.chunk.end - (i32)seat.quad(j), 0), (i32)LANES);
                const u32 kept = rest == LANES ? ~0u : (1u << (8 * rest)) - 1;
                m_word &= kept;
                v_word &= kept;
            }
            if (!seat.has(j, 0)) continue;
            store_one<4>(seat.chunk.arrays[0] + seat.quad(j), 0, m_word);
            store_one<4>(seat.chunk.arrays[1] + seat.quad(j), 0, v_word);
            if (seat.quad(j) % BLOCK8_BLOCK == 0) {
                const u64 block = seat.template block<BLOCK8_BLOCK>(j) * 4;
                store_one<4>(seat.chunk.arrays[2] + block, 0, m_largest[j]);
                store_one<4>(seat.chunk.arrays[3] + block, 0, v_largest[j]);
            }
        }
        return true;
    }

    template <bool SIGNED>
    __device__ u32 quick_codes(const Inverse& inverse, const float* x) const {
        u32 words[LANES];
#pragma unroll
        for (u32 k = 0; k < LANES; k++) words[k] = tables.looked_up<SIGNED>(inverse.over(x[k]));
        return __byte_perm(__byte_perm(words[0], words[1], 0x0073),
                           __byte_perm(words[2], words[3], 0x0073), 0x5410);
    }

    template <bool FIRST>
    __device__ u32 codes(const Step& step, float absmax, const float* x) const {
        u32 word = 0;
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            const float quotient = absmax == 0.0f ? 0.0f : __fdiv_rn(x[k], absmax);
            word |= tables.bisected<FIRST>(quotient) << (8 * k);
        }
        return word;
    }

    __device__ void finish(const Step&, const Chunk&, const Group&, SharedRoom&) const {}
};
