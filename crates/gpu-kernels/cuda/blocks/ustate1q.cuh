// Blocks of ustate1q: 2-bit codes of the normalised update, second moments on grids of logarithms; or
// either of them as f32; twin of optimizer/src/cpu/ustate1q.rs.
#pragma once

#include "blocks/grid.cuh"
#include "codec/ustate.cuh"

// What a tensor's first moments have besides codes and means; src/layout.rs lays out the same.
struct UStateRecord {
    float decode_scale;
    float encode_scale;
    float zero;
    u32 blocks_done;
    u64 units;
    u64 fractions;
    u64 live;
    // The update that wrote the state, and the units that it wrote in.
    u64 written;
    float correction;
    float rms_scale;
    u64 padding;
};
static_assert(sizeof(UStateRecord) == ARRAY_BYTES, "the record fills its array");

struct UStateState {
    static constexpr bool REPAIRED = USTATE_REPAIRED;
    static constexpr bool DECAYS_LAST = false;
    static constexpr bool HAS_BIAS = false;
    static constexpr u32 RUN = USTATE_BLOCK / LANES;
    static constexpr u32 MEAN_RUN = USTATE_MEAN_BLOCK / LANES;
    typedef Levels<REPAIRED, USTATE_V_BITS, RUN> OwnLevels;
    static_assert(!(KINDS & USTATE_KINDS) || OwnLevels::WORDS <= SHARED_TABLE_WORDS, "room");
    u64 m_codes;
    u64 m_means;
    u64 record_at;
    u64 v_codes;
    u64 v_endpoints;
    UStateRecord record;

    __device__ UStateState(const Step&, const Seat& seat) {
        const u64 length = seat.chunk.length, index = seat.index;
        const u64 whole = blocks_of(length, USTATE_BLOCK) * USTATE_BLOCK;
        u64 next = seat.chunk.state;
        if constexpr (USTATE_FIRST) {
            m_codes = next + index / 4;
            next += padded(whole / 4);
            m_means = next + index / USTATE_MEAN_BLOCK * 2;
            next += padded(blocks_of(length, USTATE_MEAN_BLOCK) * 2);
            record_at = next;
            record = *reinterpret_cast<const UStateRecord*>(next);
            next += ARRAY_BYTES;
        } else {
            m_codes = next + index * 4;
            next += padded(length * 4);
        }
        if constexpr (USTATE_SECOND) {
            v_codes = next + index * USTATE_V_BITS / 8;
            next += padded(whole * USTATE_V_BITS / 8);
            v_endpoints = next + index / USTATE_BLOCK * 4;
        } else {
            v_codes = next + index * 4;
        }
        if (threadIdx.x < 3) seat.room.sums[threadIdx.x] = 0;
        __syncthreads();
    }

    // The codes of v of four elements, in the low bits of a word.
    __device__ u32 load_v_codes(const Seat& seat) const {
        u32 word = 0;
        if (seat.count <= 0) return word;
        if constexpr (USTATE_V_BITS == 2) word = load_byte(v_codes);
        if constexpr (USTATE_V_BITS == 4) word = load_one<2>(v_codes, 0);
        if constexpr (USTATE_V_BITS == 8) word = load_one<4>(v_codes, 0);
        if constexpr (USTATE_V_BITS == 6) {
            word = load_byte(v_codes) | load_byte(v_codes + 1) << 8 | load_byte(v_codes + 2) << 16;
        }
        if constexpr (USTATE_V_BITS == 3) {
            // Two threads share three bytes; v_codes is the byte in which this one's begin.
            word = (load_byte(v_codes) | load_byte(v_codes + 1) << 8) >> (threadIdx.x & 1 ? 4 : 0);
        }
        return word;
    }

    __device__ void store_v_codes(const Seat& seat, u32 word) const {
        if constexpr (USTATE_V_BITS == 3) {
            const u32 other = exchanged<1>(seat.room, word);
            if (seat.count <= 0 || (threadIdx.x & 1) != 0) return;
            word |= other << 12;
            for (u32 byte = 0; byte < 3; byte++) store_byte(v_codes + byte, word >> (8 * byte) & 0xFF);
        }
        if (seat.count <= 0) return;
        if constexpr (USTATE_V_BITS == 2) store_byte(v_codes, word);
        if constexpr (USTATE_V_BITS == 4) store_one<2>(v_codes, 0, word);
        if constexpr (USTATE_V_BITS == 8) store_one<4>(v_codes, 0, word);
        if constexpr (USTATE_V_BITS == 6) {
            for (u32 byte = 0; byte < 3; byte++) store_byte(v_codes + byte, word >> (8 * byte) & 0xFF);
        }
    }

    // A moment that is f32.
    __device__ static void load_plain(const Seat& seat, u64 address, float* numbers) {
        for (u32 k = 0; k < LANES; k++) {
            numbers[k] = seat.has(k) ? as_float(load_one<4>(address, k)) : 0.0f;
        }
    }
    __device__ static void store_plain(const Seat& seat, u64 address, const float* numbers) {
        for (u32 k = 0; k < LANES; k++) {
            if (seat.has(k)) store_one<4>(address, k, as_bits(numbers[k]));
        }
    }

    __device__ static float unit_eps(const Group& group) { return REPAIRED ? 0.0f : group.eps; }

    __device__ Moments4 decode(const Seat& seat) const {
        Moments4 moments;
        float roots[LANES];
        if constexpr (USTATE_SECOND) {
            const u32 ends = seat.has_block(USTATE_BLOCK) ? load_one<4>(v_endpoints, 0) : 0;
            const u32 word = load_v_codes(seat);
            const OwnLevels levels(seat.room.tables);
            levels.fill(Grid(ends & 0xFFFF, ends >> 16, USTATE_V_BITS));
#pragma unroll
            for (u32 k = 0; k < LANES; k++) {
                const u32 code = word >> (USTATE_V_BITS * k) & (OwnLevels::COUNT - 1);
                moments.v[k] = levels.values[code];
                roots[k] = levels.roots[code];
            }
        } else {
            load_plain(seat, v_codes, moments.v);
            for (u32 k = 0; k < LANES; k++) roots[k] = __fsqrt_rn(moments.v[k]);
        }
        if constexpr (!USTATE_FIRST) {
            load_plain(seat, m_codes, moments.m);
            for (u32 k = 0; k < LANES; k++) {
                if (REPAIRED) moments.v[k] = at_least_ratio(moments.m[k], moments.v[k], seat.group);
            }
            return moments;
        }
        const u32 byte = seat.count > 0 ? load_byte(m_codes) : 0;
        const float mean = bf16_to_f32(seat.count > 0 ? load_one<2>(m_means, 0) : 0);
        // Live elements in the upper half, the sum of their codes in the lower.
        u32 sums = 0;
        bool is_live[LANES];
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            is_live[k] = seat.has(k) && !is_kept_as_zero<REPAIRED>(moments.v[k]);
            if (is_live[k]) sums += (1u << 16) + (byte >> (2 * k) & 3);
        }
        sums = folded<AddWords, MEAN_RUN>(seat.room, sums);
        const float live = __int2float_rn((i32)(sums >> 16));
        const float code_sum = __int2float_rn((i32)(sums & 0xFFFF));
        const float code_mean = sums == 0 ? 0.0f : __fdiv_rn(code_sum, live);
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            const float code = __int2float_rn((i32)(byte >> (2 * k) & 3));
            const float q = __fmaf_rn(record.decode_scale, __fsub_rn(code, code_mean), mean);
            const float unit = __fmaf_rn(roots[k], record.rms_scale, unit_eps(seat.group));
            float m = __fmul_rn(__fmul_rn(q, record.correction), unit);
            if (REPAIRED) m = within(m, __fmul_rn(seat.group.ratio_max_before, roots[k]));
            moments.m[k] = is_live[k] ? m : 0.0f;
        }
        return moments;
    }

    __device__ void encode(const Seat& seat, const Moments4& moments) const {
        float stored[LANES], roots[LANES], uniforms[LANES];
        if constexpr (USTATE_SECOND) {
            const u32 ends = agreed_endpoints<REPAIRED, RUN>(seat, moments.v);
            const Grid grid(ends & 0xFFFF, ends >> 16, USTATE_V_BITS);
            const OwnLevels levels(seat.room.tables);
            levels.fill(grid);
            u32 word = 0;
#pragma unroll
            for (u32 k = 0; k < LANES; k++) {
                const Uniforms both = seat.template uniforms<REPAIRED>(k);
                uniforms[k] = both.first;
                const u32 code = seat.has(k) ? levels.code(grid, moments.v[k], both.second) : 0;
                stored[k] = levels.values[code];
                roots[k] = levels.roots[code];
                word |= code << (USTATE_V_BITS * k);
            }
            store_v_codes(seat, word);
            if (seat.count > 0 && threadIdx.x % RUN == 0) store_one<4>(v_endpoints, 0, ends);
        } else {
            store_plain(seat, v_codes, moments.v);
            for (u32 k = 0; k < LANES; k++) {
                uniforms[k] = seat.template uniforms<REPAIRED>(k).first;
                stored[k] = moments.v[k];
                roots[k] = __fsqrt_rn(moments.v[k]);
            }
        }
        if constexpr (!USTATE_FIRST) {
            store_plain(seat, m_codes, moments.m);
        } else {
            encode_first(seat, moments.m, stored, roots, uniforms);
        }
    }

    __device__ void encode_first(const Seat& seat, const float* m, const float* stored,
                                 const float* roots, const float* uniforms) const {
        float q[LANES];
        bool is_live[LANES];
        u32 live = 0;
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            is_live[k] = seat.has(k) && !is_kept_as_zero<REPAIRED>(stored[k]);
            const float unit = __fmaf_rn(roots[k], seat.group.rms_scale, unit_eps(seat.group));
            float own = __fdiv_rn(__fmul_rn(m[k], seat.group.inverse_correction), unit);
            if (REPAIRED) own = within(own, seat.group.normalised_max);
            q[k] = is_live[k] ? own : 0.0f;
            if (is_live[k]) live++;
        }
        live = folded<AddWords, MEAN_RUN>(seat.room, live);
        const float sum = as_float(folded<AddFloats, MEAN_RUN>(seat.room, as_bits(sum_of_four(q))));
        const u32 mean_bits = live == 0 ? 0 : bf16_nearest(__fdiv_rn(sum, __int2float_rn((i32)live)));
        const float mean = bf16_to_f32(mean_bits);
        const float inverse_scale = ustate_inverse(record.encode_scale);
        float squares[LANES];
        u32 byte = 0;
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            const float distance = is_live[k] ? __fsub_rn(q[k], mean) : 0.0f;
            squares[k] = __fmul_rn(distance, distance);
            const u32 code = ustate_code(distance, inverse_scale, uniforms[k]);
            if (is_live[k]) byte |= code << (2 * k);
        }
        const u32 spread = folded<AddFloats, MEAN_RUN>(seat.room, as_bits(sum_of_four(squares)));
        if (seat.count <= 0) return;
        store_byte(m_codes, byte);
        if (threadIdx.x % MEAN_RUN == 0) {
            store_one<2>(m_means, 0, mean_bits);
            const SquareUnits own(as_float(spread));
            atomicAdd(&seat.room.sums[0], own.units);
            atomicAdd(&seat.room.sums[1], own.fractions);
            atomicAdd(&seat.room.sums[2], (u64)live);
        }
    }

    __device__ static float sum_of_four(const float* x) {
        return __fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(x[2], x[3]));
    }

    // Adds the block to its tensor's sums; the last block of the tensor moves the scales on.
    __device__ void finish(const Step& step, const Seat& seat) const {
        if constexpr (USTATE_FIRST) {
            __syncthreads();
            if (threadIdx.x != 0) return;
            UStateRecord* const shared = reinterpret_cast<UStateRecord*>(record_at);
            atomicAdd(&shared->units, seat.room.sums[0]);
            atomicAdd(&shared->fractions, seat.room.sums[1]);
            atomicAdd(&shared->live, seat.room.sums[2]);
            __threadfence();
            const u64 blocks = blocks_of(seat.chunk.length, THREADS * LANES);
            if (atomicAdd(&shared->blocks_done, 1u) + 1 != (u32)blocks) return;
            __threadfence();
            const u64 units = atomicAdd(&shared->units, (u64)0);
            const u64 fractions = atomicAdd(&shared->fractions, (u64)0);
            const u64 live = REPAIRED ? atomicAdd(&shared->live, (u64)0) : seat.chunk.length;
            UStateRecord next = {};
            next.decode_scale = record.encode_scale;
            next.encode_scale = ustate_next_scale(units, fractions, live, record.encode_scale);
            next.written = step.control->update;
            next.correction = seat.group.correction;
            next.rms_scale = seat.group.rms_scale;
            *shared = next;
        }
    }
};
