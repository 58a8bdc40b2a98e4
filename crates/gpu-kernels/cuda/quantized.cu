// One update of block-wise 8-bit AdamW over bf16 parameters and gradients, codes and absmaxes in and out.
// Launched by src/quantized.rs; twin of optimizer/src/quantized.rs.
//
//     m = fma(beta1, M1[c1] a1, (1 - beta1) g)        v = fma(beta2, M2[c2] a2, ((1 - beta2) g) g)
//     p = bf16(fma(-step, m / fma(sqrt(v), rms_scale, eps), p decay))
//
// All f32 but for parameters and gradients, every operation rounded to nearest. Then a is the largest
// magnitude of each block of BLOCK elements, and a code that of the map's entry nearest to the moment over a.
// Overwrites parameters, codes and absmaxes. What is not finite spreads through its block.
//
// Grid: a block for every so many tiles of THREADS * 8 elements, which are one block of the format or some. A thread
// has eight neighbours: 16 bytes of parameters and of gradients, 8 of codes. It asks for all it needs of a
// tile before it computes, and reads maps in tables that its block fills once.
//
// Codes are looked up as in codec/dynamic_map.cuh, but in cells that are even from EVEN_BASE_BITS to 1, which takes
// fewer steps; the first one has all smaller numbers too.
//
// Defines: THREADS, BLOCKS_MIN (that should fit a multiprocessor), BLOCK, EVEN_BASE_BITS, EVEN_TABLE_WORDS,
// EVEN_FIRST_CELLS, MAP_FIRST_SHIFT, MAP_SECOND_SHIFT.

#include "codec/half_floats.cuh"
#include "codec/inverse.cuh"
#include "prelude.cuh"

// Everything a launch is given.
struct Quantized {
    u64 parameters;
    u64 gradients;
    u64 m_codes;
    u64 v_codes;
    u64 m_absmax;
    u64 v_absmax;
    const u32* maps;
    u64 length;
    u32 tiles;
    u32 maps_are_fine;
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float eps;
    float decay;
    float step;
    float rms_scale;
};

// What codes stand for, and the cells of numbers; src/maps.rs lays them out.
struct EvenTables {
    // Entries of both maps; cells of the first map's positive and negative numbers, and of the second's.
    u32* shared;
    // The same in device memory, and after it the thresholds of both maps.
    const u32* memory;

    // Copies the tables. All threads of a block take part, and meet afterwards.
    __device__ void fill() const {
        static_assert(EVEN_TABLE_WORDS % 4 == 0, "copied 16 bytes at a time");
#pragma unroll 4
        for (u32 word = threadIdx.x * 4; word < EVEN_TABLE_WORDS; word += THREADS * 4) {
            *reinterpret_cast<uint4*>(shared + word) = *reinterpret_cast<const uint4*>(memory + word);
        }
    }

    template <bool FIRST>
    __device__ float entry(u32 code) const { return as_float((shared + (FIRST ? 0 : 256))[code]); }

    // A word with the code of x in its upper 8 bits.
    template <bool FIRST>
    __device__ u32 looked_up(float x) const {
        constexpr u32 SHIFT = FIRST ? MAP_FIRST_SHIFT : MAP_SECOND_SHIFT;
        constexpr u32 BASE = EVEN_BASE_BITS >> SHIFT;
        const u32 bits = as_bits(x);
        const u32 sign = FIRST ? (u32)((i32)bits >> 31) : 0;
        u32 cell = max((FIRST ? bits & MAGNITUDE : bits) >> SHIFT, BASE);
        if (FIRST) cell -= sign * EVEN_FIRST_CELLS;
        const u32* const cells = shared + 512 + (FIRST ? 0 : 2 * EVEN_FIRST_CELLS);
        return cells[(i32)cell - (i32)BASE] + ((bits ^ sign) & 0xFFFFFFu);
    }

    // The code of any number.
    template <bool FIRST>
    __device__ u32 bisected(float x) const {
        const u32* const thresholds = memory + EVEN_TABLE_WORDS + (FIRST ? 0 : 256);
        u32 code = 0;
#pragma unroll 1
        for (u32 step = 128; step > 0; step /= 2) {
            if (x > as_float(thresholds[code + step - 1])) code += step;
        }
        return code;
    }
};

// Neighbours of a thread, elements of a tile, threads of a block of the format.
static constexpr u32 EIGHT = 8;
static constexpr u32 TILE_ELEMENTS = THREADS * EIGHT;
static constexpr u32 RUN = BLOCK / EIGHT;
static_assert(TILE_ELEMENTS % BLOCK == 0, "a tile has whole blocks");

// What a thread has of a tile.
struct Eight {
    float p[EIGHT];
    float g[EIGHT];
    float m[EIGHT];
    float v[EIGHT];
};

// What lies in memory of it: pairs of bf16, codes by fours, and absmaxes.
struct Stored {
    uint4 parameters;
    uint4 gradients;
    uint2 m_codes;
    uint2 v_codes;
    u32 m_absmax;
    u32 v_absmax;
};

// The words of a vector.
__device__ __forceinline__ u32& word_of(uint4& vector, u32 number) { return (&vector.x)[number]; }
__device__ __forceinline__ u32& word_of(uint2& vector, u32 number) { return (&vector.x)[number]; }

// The eight from element `first` on, of which `count` are there.
__device__ __forceinline__ Stored load_eight(const Quantized& all, u64 first, u32 count) {
    Stored stored = {};
    const u64 block = first / BLOCK * 4;
    if (count == EIGHT) {
        load(all.parameters + first * 2, stored.parameters);
        load(all.gradients + first * 2, stored.gradients);
        load(all.m_codes + first, stored.m_codes);
        load(all.v_codes + first, stored.v_codes);
    } else {
#pragma unroll
        for (u32 k = 0; k < EIGHT; k++) {
            if (k >= count) continue;
            const u32 half = 16 * (k % 2), byte = 8 * (k % 4);
            word_of(stored.parameters, k / 2) |= load_one<2>(all.parameters + first * 2, k) << half;
            word_of(stored.gradients, k / 2) |= load_one<2>(all.gradients + first * 2, k) << half;
            word_of(stored.m_codes, k / 4) |= load_byte(all.m_codes + first + k) << byte;
            word_of(stored.v_codes, k / 4) |= load_byte(all.v_codes + first + k) << byte;
        }
    }
    if (count > 0) {
        load(all.m_absmax + block, stored.m_absmax);
        load(all.v_absmax + block, stored.v_absmax);
    }
    return stored;
}

__device__ __forceinline__ void store_eight(const Quantized& all, u64 first, u32 count, uint4 parameters,
                                            uint2 m_codes, uint2 v_codes) {
    if (count == EIGHT) {
        store(all.parameters + first * 2, parameters);
        store(all.m_codes + first, m_codes);
        store(all.v_codes + first, v_codes);
        return;
    }
#pragma unroll
    for (u32 k = 0; k < EIGHT; k++) {
        if (k >= count) continue;
        const u32 half = 16 * (k % 2), byte = 8 * (k % 4);
        store_one<2>(all.parameters + first * 2, k, word_of(parameters, k / 2) >> half & 0xFFFFu);
        store_byte(all.m_codes + first + k, word_of(m_codes, k / 4) >> byte & 0xFFu);
        store_byte(all.v_codes + first + k, word_of(v_codes, k / 4) >> byte & 0xFFu);
    }
}

__device__ __forceinline__ Eight decoded(const EvenTables& tables, Stored stored) {
    Eight eight;
    const float m_absmax = as_float(stored.m_absmax), v_absmax = as_float(stored.v_absmax);
#pragma unroll
    for (u32 k = 0; k < EIGHT; k++) {
        const u32 p = word_of(stored.parameters, k / 2), g = word_of(stored.gradients, k / 2);
        const u32 m = __byte_perm(word_of(stored.m_codes, k / 4), 0, 0x4440 + k % 4);
        const u32 v = __byte_perm(word_of(stored.v_codes, k / 4), 0, 0x4440 + k % 4);
        eight.p[k] = as_float(k % 2 == 0 ? p << 16 : p & 0xFFFF0000u);
        eight.g[k] = as_float(k % 2 == 0 ? g << 16 : g & 0xFFFF0000u);
        eight.m[k] = __fmul_rn(tables.entry<true>(m), m_absmax);
        eight.v[k] = __fmul_rn(tables.entry<false>(v), v_absmax);
    }
    return eight;
}

// A bf16; of what is not a number always the same.
__device__ __forceinline__ u32 as_bf16(float number) {
    return (as_bits(number) & MAGNITUDE) <= INFINITE ? bf16_nearest(number) : 0xFFC0u;
}

// Both bf16 of finite numbers.
__device__ __forceinline__ u32 quick_pair(float low, float high) {
#if defined(__CUDACC__)
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return as_bf16(low) | as_bf16(high) << 16;
#endif
}

// The bits of the largest magnitudes, also where some are no numbers.
__device__ __forceinline__ void find_largest(const Eight& eight, u32& m_largest, u32& v_largest) {
    m_largest = v_largest = 0;
#pragma unroll
    for (u32 k = 0; k < EIGHT; k++) {
        m_largest = max(m_largest, as_bits(eight.m[k]) & MAGNITUDE);
        v_largest = max(v_largest, as_bits(eight.v[k]) & MAGNITUDE);
    }
}

// Moves moments and parameters on, and leaves these in memory's shape, with the largest magnitudes. Quick roots and quotients serve where
// all numbers are in their range, which is asked once for all eight.
__device__ __forceinline__ uint4 updated(const Quantized& all, Eight& eight, u32& m_largest,
                                         u32& v_largest) {
    u32 largest = 0, least_v = ~0u, least_m = ~0u;
    float p[EIGHT];
#pragma unroll
    for (u32 k = 0; k < EIGHT; k++) {
        const float g = eight.g[k];
        eight.m[k] = __fmaf_rn(all.beta1, eight.m[k], __fmul_rn(all.one_minus_beta1, g));
        eight.v[k] = __fmaf_rn(all.beta2, eight.v[k], __fmul_rn(__fmul_rn(all.one_minus_beta2, g), g));
        const float root = quick_root(eight.v[k]);
        const float direction = quick_quotient(eight.m[k], __fmaf_rn(root, all.rms_scale, all.eps));
        p[k] = __fmaf_rn(-all.step, direction, __fmul_rn(eight.p[k], all.decay));
        largest = max(largest, max(as_bits(p[k]) & MAGNITUDE, as_bits(eight.v[k])));
        least_v = min(least_v, as_bits(eight.v[k]));
        // A first moment of zero is as good as a large one.
        least_m = min(least_m, 2 * as_bits(eight.m[k]) - 1);
    }
    const bool is_plain = all.eps >= power_of_two(-60) && all.eps <= power_of_two(50)
        && all.rms_scale <= power_of_two(26);
    const bool is_quick = is_plain && largest <= as_bits(power_of_two(60))
        && least_v >= as_bits(power_of_two(-100)) && least_m >= 2 * as_bits(power_of_two(-60)) - 1;
    uint4 parameters = {};
    if (is_quick) {
#pragma unroll
        for (u32 k = 0; k < EIGHT; k += 2) word_of(parameters, k / 2) = quick_pair(p[k], p[k + 1]);
        float m = 0.0f, v = 0.0f;
#pragma unroll
        for (u32 k = 0; k < EIGHT; k++) {
            m = fmaxf(m, fabsf(eight.m[k]));
            v = fmaxf(v, fabsf(eight.v[k]));
        }
        m_largest = as_bits(m);
        v_largest = as_bits(v);
        return parameters;
    }
#pragma unroll
    for (u32 k = 0; k < EIGHT; k++) {
        // One after the other, so that few numbers are alive.
        forget_memory();
        const float root = __fsqrt_rn(eight.v[k]);
        const float direction = __fdiv_rn(eight.m[k], __fmaf_rn(root, all.rms_scale, all.eps));
        const float own = __fmaf_rn(-all.step, direction, __fmul_rn(eight.p[k], all.decay));
        word_of(parameters, k / 2) |= as_bf16(own) << (16 * (k % 2));
    }
    find_largest(eight, m_largest, v_largest);
    return parameters;
}

// The tables of a block.
struct Words {
    alignas(16) u32 at[EVEN_TABLE_WORDS];
};

// What warps tell each other.
struct Room {
    alignas(16) u32 m[THREADS / WARP_LANES];
    alignas(16) u32 v[THREADS / WARP_LANES];
};

// The largest words of a run of threads, one for each block of the format; all of them get both.
__device__ __forceinline__ void agree(Room& room, u32& m, u32& v) {
    if constexpr (RUN >= WARP_LANES) {
        m = __reduce_max_sync(0xFFFFFFFFu, m);
        v = __reduce_max_sync(0xFFFFFFFFu, v);
    } else {
#pragma unroll
        for (u32 half = RUN / 2; half > 0; half /= 2) {
            m = max(m, __shfl_xor_sync(0xFFFFFFFFu, m, half));
            v = max(v, __shfl_xor_sync(0xFFFFFFFFu, v, half));
        }
    }
    if constexpr (RUN > WARP_LANES) {
        constexpr u32 WARPS = RUN / WARP_LANES;
        const u32 warp = threadIdx.x / WARP_LANES, first = warp / WARPS * WARPS;
        if (threadIdx.x % WARP_LANES == 0) {
            room.m[warp] = m;
            room.v[warp] = v;
        }
        __syncthreads();
#pragma unroll
        for (u32 other = 0; other < WARPS; other++) {
            m = max(m, room.m[first + other]);
            v = max(v, room.v[first + other]);
        }
    }
}

// The codes of eight moments of a block.
template <bool FIRST>
__device__ __forceinline__ uint2 encoded(const Quantized& all, const EvenTables& tables, u32 absmax,
                                         const float* x) {
    const Inverse inverse(absmax);
    uint2 codes = {};
    if (all.maps_are_fine && inverse.is_quick()) {
#pragma unroll
        for (u32 four = 0; four < EIGHT; four += 4) {
            u32 words[4];
#pragma unroll
            for (u32 k = 0; k < 4; k++) words[k] = tables.looked_up<FIRST>(inverse.over(x[four + k]));
            word_of(codes, four / 4) = __byte_perm(__byte_perm(words[0], words[1], 0x0073),
                                                   __byte_perm(words[2], words[3], 0x0073), 0x5410);
        }
        return codes;
    }
#pragma unroll
    for (u32 k = 0; k < EIGHT; k++) {
        const float quotient = absmax == 0 ? 0.0f : __fdiv_rn(x[k], as_float(absmax));
        word_of(codes, k / 4) |= tables.bisected<FIRST>(quotient) << (8 * (k % 4));
    }
    return codes;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_MIN)
    quantized_update(const __grid_constant__ Quantized all) {
    __shared__ Words words;
    __shared__ Room room;
    const EvenTables tables = {words.at, all.maps};
    tables.fill();
    const u64 begin = (u64)blockIdx.x * all.tiles * TILE_ELEMENTS;
    const u64 end = min(begin + (u64)all.tiles * TILE_ELEMENTS, all.length);
#pragma unroll 1
    for (u64 tile = begin; tile < end; tile += TILE_ELEMENTS) {
        const u64 first = tile + threadIdx.x * EIGHT;
        const u32 count = first >= all.length ? 0 : (u32)min(all.length - first, (u64)EIGHT);
        const Stored stored = load_eight(all, first, count);
        // Tables are filled, and the room is free again.
        __syncthreads();
        Eight eight = decoded(tables, stored);
        u32 m_largest, v_largest;
        const uint4 parameters = updated(all, eight, m_largest, v_largest);
        if (count < EIGHT) {
#pragma unroll
            for (u32 k = 0; k < EIGHT; k++) {
                if (k >= count) eight.m[k] = eight.v[k] = 0.0f;
            }
            find_largest(eight, m_largest, v_largest);
        }
        agree(room, m_largest, v_largest);
        const uint2 m_codes = encoded<true>(all, tables, m_largest, eight.m);
        const uint2 v_codes = encoded<false>(all, tables, v_largest, eight.v);
        store_eight(all, first, count, parameters, m_codes, v_codes);
        if (count > 0 && threadIdx.x % RUN == 0) {
            const u64 block = first / BLOCK * 4;
            store(all.m_absmax + block, m_largest);
            store(all.v_absmax + block, v_largest);
        }
    }
}
