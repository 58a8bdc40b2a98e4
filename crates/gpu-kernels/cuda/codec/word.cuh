// One 32-bit state word: both moments of one parameter; twin of formats/src/word.rs.
//
//     word = m_code | (r_code << 16)
#pragma once

#include "codec/counter_hash.cuh"
#include "codec/minifloat.cuh"

typedef Minifloat<E4M11_FRACTION_BITS, E4M11_CODE_MAX> E4M11;
typedef Minifloat<E4M12_FRACTION_BITS, E4M12_CODE_MAX> E4M12;
typedef Minifloat<BINARY16_FRACTION_BITS, BINARY16_CODE_MAX> Binary16;

// What a state word stands for.
struct Moments {
    float m;
    float r;
};

// A state word just encoded.
struct Packed {
    u32 word;
    bool saturated_m;
    bool saturated_r;
};

__device__ __forceinline__ Packed join(Rounded m, Rounded r) {
    Packed packed;
    packed.word = m.code + (r.code << 16);
    packed.saturated_m = m.saturated;
    packed.saturated_r = r.saturated;
    return packed;
}

// The `e4` format: signed E4M11 below, unsigned E4M12 above, one bias for both.
struct E4Word {
    E4M11 m;
    E4M12 r;

    __device__ explicit E4Word(u32 bias) : m(bias), r(bias) {}

    __device__ Moments decode(u32 word) const {
        return Moments{m.decode_signed(word & 0xFFFFu), r.decode(word >> 16)};
    }

    __device__ Packed encode(Moments moments) const {
        return join(m.encode_signed_nearest(moments.m),
                    never_zero_for(r.encode_nearest(moments.r), moments.r));
    }

    // As `e4s` encodes: both rounded stochastically by a random word, m by its lower half first.
    __device__ Packed encode_stochastic(Moments moments, u32 random) const {
        return join(m.encode_signed_stochastic(moments.m, random << 16 | random >> 16),
                    never_zero_for(r.encode_stochastic(moments.r, random), moments.r));
    }
};

// The `fp16` format: binary16 in both halves, saturating, without bias.
struct Fp16Word {
    Binary16 lane;

    __device__ Fp16Word() : lane(BINARY16_BIAS) {}

    __device__ Moments decode(u32 word) const {
        return Moments{lane.decode_signed(word & 0xFFFFu), lane.decode(word >> 16)};
    }

    __device__ Packed encode(Moments moments) const {
        return join(lane.encode_signed_nearest(moments.m),
                    never_zero_for(lane.encode_nearest(moments.r), moments.r));
    }
};
