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
// Grid: a block for every multiprocessor, which take tiles of THREADS * 8 elements in turn; a tile is some blocks of the
// format. A thread has eight neighbours: 16 bytes of parameters and of gradients, 8 of codes. It asks for what it
// needs of a tile when it comes to it, and reads maps in tables that its block fills once. Where the threads of a block of the
// format are more than a warp, one of them has the second cache fetch the next tile's part meanwhile: what waits for
// each other waits for the slowest memory access of all.
//
// Shared memory, asked for by a launch: TABLE_WORDS, as src/maps.rs lays them out: cells of the first map's positive numbers from 0 on, of its
// negative ones from FIRST_NEGATIVE on, of the second map's from SECOND_EVEN_CELLS on, and ENTRY_COPIES of each entry of both maps
// from FIRST_ENTRIES and SECOND_ENTRIES on, for other lanes each. Cells are even, 2^-6 or 2^-7 of a binade; those of the
// second map begin at EVEN_BASE_BITS, which smaller numbers are raised to. The word of a cell is such that its sum
// with the bits of a number has the number's code in its upper 8, or all bits of it turned over if that is negative.
//
// Defines: THREADS, BLOCK, EVEN_BASE_BITS, TABLE_WORDS, FIRST_NEGATIVE,
// SECOND_EVEN_CELLS, FIRST_ENTRIES, SECOND_ENTRIES, ENTRY_COPIES, MAP_FIRST_SHIFT, MAP_SECOND_SHIFT.

#include "codec/half_floats.cuh"
#include "codec/inverse.cuh"
#include "mma.cuh"
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
    u32 maps_are_fine;
    u32 padding;
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
    u32* shared;
    // The same in device memory, and after it the thresholds of both maps.
    const u32* memory;
#if defined(__CUDACC__)
    // The address of this lane's copy of the first entry.
    Shared entries;
#else
    const u32* entries;
#endif

    __device__ EvenTables(u8* shared, const u32* memory) : shared(reinterpret_cast<u32*>(shared)), memory(memory) {
        const u32* const own = this->shared + FIRST_ENTRIES + threadIdx.x % ENTRY_COPIES;
#if defined(__CUDACC__)
        entries = shared_address(own);
        // One number for all entries to be counted from, not a sum for each.
        asm volatile("" : "+r"(entries));
#else
        entries = own;
#endif
    }

    // Copies the tables. All threads of a block take part, and meet afterwards.
    __device__ void fill() const {
        static_assert(TABLE_WORDS % 4 == 0, "copied 16 bytes at a time");
#pragma unroll 4
        for (u32 word = threadIdx.x * 4; word < TABLE_WORDS; word += THREADS * 4) {
            *reinterpret_cast<uint4*>(shared + word) = *reinterpret_cast<const uint4*>(memory + word);
        }
    }

    template <bool FIRST>
    __device__ float entry(u32 code) const {
        const u32 number = code * ENTRY_COPIES + (FIRST ? 0 : SECOND_ENTRIES - FIRST_ENTRIES);
#if defined(__CUDACC__)
        // Codes come from memory, and are read after all threads have met: nothing moves this before that.
        float entry;
        asm("ld.shared.f32 %0, [%1];" : "=f"(entry) : "r"(entries + number * 4));
        return entry;
#else
        return as_float(entries[number]);
#endif
    }

    // A word with the code of a magnitude up to 1 in its upper 8 bits, or of a negative number the same turned over.
    template <bool FIRST>
    __device__ u32 looked_up(float x) const {
        if constexpr (FIRST) {
            static_assert(FIRST_NEGATIVE == 1u << (31 - MAP_FIRST_SHIFT), "the sign bit leads there");
            return shared[as_bits(x) >> MAP_FIRST_SHIFT] + as_bits(x);
        }
        const u32 bits = max(as_bits(x), (u32)EVEN_BASE_BITS);
        return shared[SECOND_EVEN_CELLS - (EVEN_BASE_BITS >> MAP_SECOND_SHIFT) + (bits >> MAP_SECOND_SHIFT)] + bits;
    }

    // The code of any number.
    template <bool FIRST>
    __device__ u32 bisected(float x) const {
        const u32* const thresholds = memory + TABLE_WORDS + (FIRST ? 0 : 256);
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

// The eight from element `first` on, of which `count` are there; if IS_WHOLE all.
template <bool IS_WHOLE>
__device__ __forceinline__ Stored load_eight(const Quantized& all, u64 first, u32 count) {
    Stored stored = {};
    const u64 block = first / BLOCK * 4;
    if constexpr (IS_WHOLE) {
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
    if (IS_WHOLE || count > 0) {
        load(all.m_absmax + block, stored.m_absmax);
        load(all.v_absmax + block, stored.v_absmax);
    }
    return stored;
}

static constexpr u32 RUN_ELEMENTS = RUN * EIGHT;

// Has the second cache fetch what a run takes of a whole tile, of which `first` is this thread's first element.
__device__ __forceinline__ void ask_ahead(const Quantized& all, u64 first) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x % RUN != 0) return;
    const auto ask = [](u64 address, u32 bytes) {
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(address), "r"(bytes) : "memory");
    };
    ask(all.v_codes + first, RUN_ELEMENTS);
    ask(all.gradients + first * 2, RUN_ELEMENTS * 2);
    ask(all.m_codes + first, RUN_ELEMENTS);
    ask(all.parameters + first * 2, RUN_ELEMENTS * 2);
#endif
}

template <bool IS_WHOLE>
__device__ __forceinline__ void store_parameters(const Quantized& all, u64 first, u32 count, uint4 parameters) {
    if constexpr (IS_WHOLE) {
        store(all.parameters + first * 2, parameters);
        return;
    }
#pragma unroll
    for (u32 k = 0; k < EIGHT; k++) {
        if (k >= count) continue;
        store_one<2>(all.parameters + first * 2, k, word_of(parameters, k / 2) >> (16 * (k % 2)) & 0xFFFFu);
    }
}

template <bool IS_WHOLE>
__device__ __forceinline__ void store_codes(u64 array, u64 first, u32 count, uint2 codes) {
    if constexpr (IS_WHOLE) {
        store(array + first, codes);
        return;
    }
#pragma unroll
    for (u32 k = 0; k < EIGHT; k++) {
        if (k < count) store_byte(array + first + k, word_of(codes, k / 4) >> (8 * (k % 4)) & 0xFFu);
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

// A byte of ones for each of four numbers that is negative, else of zeros.
__device__ __forceinline__ u32 sign_bytes(const float* x) {
    u32 pairs[2];
#pragma unroll
    for (u32 pair = 0; pair < 2; pair++) {
        const u32 low = as_bits(x[2 * pair]), high = as_bits(x[2 * pair + 1]);
#if defined(__CUDACC__)
        // The upper byte of each, its sign in all bits.
        asm("prmt.b32 %0, %1, %2, 0xFB;" : "=r"(pairs[pair]) : "r"(low), "r"(high));
#else
        pairs[pair] = (low >> 31) * 0xFFu | (high >> 31) * 0xFF00u;
#endif
    }
    return __byte_perm(pairs[0], pairs[1], 0x5410);
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

// The same of numbers that all are finite.
__device__ __forceinline__ void find_largest_finite(const Eight& eight, u32 v_most, u32& m_largest, u32& v_largest) {
    const float* const m = eight.m;
    const float fours[] = {fmaxf(fmaxf(fabsf(m[0]), fabsf(m[1])), fmaxf(fabsf(m[2]), fabsf(m[3]))),
                           fmaxf(fmaxf(fabsf(m[4]), fabsf(m[5])), fmaxf(fabsf(m[6]), fabsf(m[7])))};
    m_largest = as_bits(fmaxf(fours[0], fours[1]));
    // Second moments have no sign.
    v_largest = v_most;
}

// Moves moments and parameters on, and leaves these in memory's shape, with the largest magnitudes. Quick roots and quotients serve where
// all numbers are in their range, which is asked once for all eight, with parameters up to `parameter_max`.
__device__ __forceinline__ uint4 updated(const Quantized& all, float parameter_max, Eight& eight, u32& m_largest,
                                         u32& v_largest) {
    u32 most_v = 0, least_v = ~0u, least_m = ~0u;
    float p[EIGHT], largest_p = 0.0f;
#pragma unroll
    for (u32 k = 0; k < EIGHT; k++) {
        const float g = eight.g[k];
        eight.m[k] = __fmaf_rn(all.beta1, eight.m[k], __fmul_rn(all.one_minus_beta1, g));
        eight.v[k] = __fmaf_rn(all.beta2, eight.v[k], __fmul_rn(__fmul_rn(all.one_minus_beta2, g), g));
        const float root = quick_root(eight.v[k]);
        const float direction = quick_quotient(eight.m[k], __fmaf_rn(root, all.rms_scale, all.eps));
        p[k] = __fmaf_rn(-all.step, direction, __fmul_rn(eight.p[k], all.decay));
    }
#pragma unroll
    for (u32 k = 0; k < EIGHT; k += 2) {
        largest_p = larger_magnitude(largest_p, larger_magnitude(p[k], p[k + 1]));
        const u32 v[] = {as_bits(eight.v[k]), as_bits(eight.v[k + 1])};
        most_v = max(max(most_v, v[0]), v[1]);
        least_v = min(min(least_v, v[0]), v[1]);
        // A first moment of zero is as good as a large one.
        least_m = min(min(least_m, 2 * as_bits(eight.m[k]) - 1), 2 * as_bits(eight.m[k + 1]) - 1);
    }
    const bool is_quick = largest_p <= parameter_max && most_v <= as_bits(power_of_two(60))
        && least_v >= as_bits(power_of_two(-100)) && least_m >= 2 * as_bits(power_of_two(-60)) - 1;
    uint4 parameters = {};
    if (is_quick) {
#pragma unroll
        for (u32 k = 0; k < EIGHT; k += 2) word_of(parameters, k / 2) = quick_pair(p[k], p[k + 1]);
        find_largest_finite(eight, most_v, m_largest, v_largest);
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

// What warps tell each other.
struct Room {
    alignas(16) u32 m[THREADS / WARP_LANES];
    alignas(16) u32 v[THREADS / WARP_LANES];
};

// Has all threads of a run wait for each other: there are 16 barriers, and 16 runs of two warps at most.
__device__ __forceinline__ void meet_in_run() {
#if defined(__CUDACC__)
    asm volatile("bar.sync %0, %1;" : : "r"(threadIdx.x / RUN), "n"(RUN) : "memory");
#else
    __syncthreads();
#endif
}

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
        meet_in_run();
#pragma unroll
        for (u32 other = 0; other < WARPS; other++) {
            m = max(m, room.m[first + other]);
            v = max(v, room.v[first + other]);
        }
    }
}

// The codes of eight moments of a block over its largest magnitude, by a look into the tables each.
template <bool FIRST>
__device__ __forceinline__ uint2 quick_codes(const EvenTables& tables, const Inverse& inverse, const float* x) {
    uint2 codes;
#pragma unroll
    for (u32 four = 0; four < EIGHT; four += 4) {
        u32 words[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) words[k] = tables.looked_up<FIRST>(inverse.over(x[four + k]));
        u32 word = __byte_perm(__byte_perm(words[0], words[1], 0x0073),
                               __byte_perm(words[2], words[3], 0x0073), 0x5410);
        if (FIRST) word ^= sign_bytes(x + four);
        word_of(codes, four / 4) = word;
    }
    return codes;
}

// The same of any moments.
template <bool FIRST>
__device__ __forceinline__ uint2 bisected_codes(const EvenTables& tables, float absmax, const float* x) {
    uint2 codes = {};
#pragma unroll
    for (u32 k = 0; k < EIGHT; k++) {
        const float quotient = absmax == 0.0f ? 0.0f : __fdiv_rn(x[k], absmax);
        word_of(codes, k / 4) |= tables.bisected<FIRST>(quotient) << (8 * (k % 4));
    }
    return codes;
}

// Updates a thread's eight of a tile; if it IS_WHOLE, all of them are there.
template <bool IS_WHOLE>
__device__ __forceinline__ void visit(const Quantized& all, const EvenTables& tables, float parameter_max, Room& room,
                                      u64 tile) {
    const u64 first = tile * TILE_ELEMENTS + threadIdx.x * EIGHT;
    const u32 count = IS_WHOLE ? EIGHT : first >= all.length ? 0 : (u32)min(all.length - first, (u64)EIGHT);
    Eight eight = decoded(tables, load_eight<IS_WHOLE>(all, first, count));
    u32 m_largest, v_largest;
    store_parameters<IS_WHOLE>(all, first, count, updated(all, parameter_max, eight, m_largest, v_largest));
    if constexpr (!IS_WHOLE) {
#pragma unroll
        for (u32 k = 0; k < EIGHT; k++) {
            if (k >= count) eight.m[k] = eight.v[k] = 0.0f;
        }
        find_largest(eight, m_largest, v_largest);
    }
    agree(room, m_largest, v_largest);
    const Inverse m_inverse(m_largest), v_inverse(v_largest);
    uint2 m_codes, v_codes;
    if (all.maps_are_fine && m_inverse.is_quick() && v_inverse.is_quick()) {
        m_codes = quick_codes<true>(tables, m_inverse, eight.m);
        v_codes = quick_codes<false>(tables, v_inverse, eight.v);
    } else {
        m_codes = bisected_codes<true>(tables, m_inverse.absmax, eight.m);
        v_codes = bisected_codes<false>(tables, v_inverse.absmax, eight.v);
    }
    store_codes<IS_WHOLE>(all.m_codes, first, count, m_codes);
    store_codes<IS_WHOLE>(all.v_codes, first, count, v_codes);
    if (count > 0 && threadIdx.x % RUN == 0) {
        const u64 block = first / BLOCK * 4;
        store(all.m_absmax + block, m_largest);
        store(all.v_absmax + block, v_largest);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    quantized_update(const __grid_constant__ Quantized all) {
    DYNAMIC_SHARED(words);
    // Of one tile and of the next, so that warps meet once a tile.
    __shared__ Room rooms[2];
    const EvenTables tables(words, all.maps);
    tables.fill();
    __syncthreads();
    const bool is_plain = all.eps >= power_of_two(-60) && all.eps <= power_of_two(50)
        && all.rms_scale <= power_of_two(26);
    const float parameter_max = is_plain ? power_of_two(60) : -1.0f;
    const u64 whole = all.length / TILE_ELEMENTS;
    u32 turn = 0;
#pragma unroll 1
    for (u64 tile = blockIdx.x; tile < whole; tile += gridDim.x) {
        if constexpr (RUN > WARP_LANES) {
            const u64 next = tile + gridDim.x;
            if (next < whole) ask_ahead(all, next * TILE_ELEMENTS + threadIdx.x * EIGHT);
        } else {
            // Warps that run apart from each other fetch instructions apart.
            __syncthreads();
        }
        visit<true>(all, tables, parameter_max, rooms[turn], tile);
        turn ^= 1;
    }
    if (all.length % TILE_ELEMENTS != 0 && whole % gridDim.x == blockIdx.x) {
        visit<false>(all, tables, parameter_max, rooms[turn], whole);
    }
}
