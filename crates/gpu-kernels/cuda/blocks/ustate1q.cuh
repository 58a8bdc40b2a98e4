// Blocks of ustate1q: 2-bit codes of the normalised update, second moments on grids of logarithms; or
// either of them as f32; twin of optimizer/src/cpu/ustate1q.rs.
#pragma once

#include "blocks/grid.cuh"
#include "blocks/ustate_record.cuh"
#include "codec/ustate.cuh"

static_assert(sizeof(UStateRecord) == ARRAY_BYTES, "the record fills its array");

struct UStateState {
    static constexpr bool REPAIRED = USTATE_REPAIRED;
    static constexpr bool DECAYS_LAST = false;
    static constexpr bool HAS_BIAS = false;
    typedef Levels<REPAIRED, USTATE_V_BITS, USTATE_BLOCK> OwnLevels;
    static_assert(!(KINDS & USTATE_KINDS) || OwnLevels::WORDS <= SHARED_TABLE_WORDS, "room");

    // Arrays: codes and means of m, and its record; codes and endpoints of v.
    __device__ static void place(Chunk& chunk) {
        const u64 length = chunk.length, index = (u64)chunk.index;
        const u64 whole = blocks_of(length, USTATE_BLOCK) * USTATE_BLOCK;
        u64 next = chunk.state;
        if constexpr (USTATE_FIRST) {
            chunk.arrays[0] = next + index / 4;
            next += padded(whole / 4);
            chunk.arrays[1] = next + index / USTATE_MEAN_BLOCK * 2;
            next += padded(blocks_of(length, USTATE_MEAN_BLOCK) * 2);
            chunk.arrays[2] = next;
            next += ARRAY_BYTES;
        } else {
            chunk.arrays[0] = next + index * 4;
            next += padded(length * 4);
        }
        if constexpr (USTATE_SECOND) {
            chunk.arrays[3] = next + index * USTATE_V_BITS / 8;
            next += padded(whole * USTATE_V_BITS / 8);
            chunk.arrays[4] = next + index / USTATE_BLOCK * 4;
        } else {
            chunk.arrays[3] = next + index * 4;
        }
    }

    // What is stored of a thread's quads: codes of m, a byte each, and of v, and the means.
    struct Stored {
        u32 m_codes;
        u32 v_codes[QUADS];
        u32 means[QUADS];

        template <class Seat>
        __device__ explicit Stored(const Seat& seat) : m_codes(0) {
#pragma unroll
            for (u32 j = 0; j < QUADS; j++) {
                v_codes[j] = means[j] = 0;
                if (!seat.has(j, 0)) continue;
                if constexpr (USTATE_FIRST) {
                    m_codes |= load_byte(seat.chunk.arrays[0] + seat.quad(j) / 4) << (8 * j);
                    const u64 block = seat.template block<USTATE_MEAN_BLOCK>(j);
                    means[j] = load_one<2>(seat.chunk.arrays[1] + block * 2, 0);
                }
                if constexpr (USTATE_SECOND) v_codes[j] = load_v_codes(v_address(seat, j));
            }
        }
    };

    __device__ UStateState(const Step&, const Chunk& chunk, const Group&, SharedRoom& room) {
        // Registers are few, so the record stays where all threads have it at hand.
        if constexpr (USTATE_FIRST) {
            const u32* const record = reinterpret_cast<const u32*>(chunk.arrays[2]);
            if (threadIdx.x < ARRAY_BYTES / 4) room.record[threadIdx.x] = record[threadIdx.x];
        }
        if (threadIdx.x < 4) room.sums[threadIdx.x] = 0;
        __syncthreads();
    }

    // The record as it was before the update.
    __device__ static const UStateRecord& record_of(const SharedRoom& room) {
        return *reinterpret_cast<const UStateRecord*>(room.record);
    }

    template <class Seat>
    __device__ void decode(const Stored& stored, const Seat& seat, Quad* moments) const {
        if constexpr (USTATE_SECOND) {
            const OwnLevels levels(seat.room.tables);
            const u64 team_block = (seat.at - lane_of_thread() * LANES) / USTATE_BLOCK;
            const auto endpoints = [&](u32 block) {
                const u64 number = team_block + block;
                if (!seat.template has_block<USTATE_BLOCK>(number)) return 0u;
                return load_one<4>(seat.chunk.arrays[4] + number * 4, 0);
            };
            levels.fill(endpoints, [&](float v) { return decode_unit(seat, root_of(v)); });
#pragma unroll
            for (u32 j = 0; j < QUADS; j++) {
                const Level* const own = levels.of(seat.quad(j));
                float units[LANES];
#pragma unroll
                for (u32 k = 0; k < LANES; k++) {
                    const Level level = own[stored.v_codes[j] >> (USTATE_V_BITS * k) & (OwnLevels::COUNT - 1)];
                    moments[j].v[k] = level.value;
                    units[k] = level.unit;
                }
                const bool is_live = !(OwnLevels::flags(own) & OwnLevels::HAS_DEAD);
                decode_first(stored, seat, j, Seat::FULL && is_live, units, moments[j]);
            }
        } else {
#pragma unroll
            for (u32 j = 0; j < QUADS; j++) {
                float units[LANES];
                load_plain(seat, j, seat.chunk.arrays[3], moments[j].v);
                for (u32 k = 0; k < LANES; k++) {
                    units[k] = decode_unit(seat, __fsqrt_rn(moments[j].v[k]));
                }
                decode_first(stored, seat, j, false, units, moments[j]);
            }
        }
        if constexpr (USTATE_FIRST) center(stored, seat, moments);
    }

    template <class Seat>
    __device__ void encode(const Step& step, const Seat& seat, const Quad* moments) const {
        float q[QUADS][LANES];
        // A bit for each element without a first moment.
        u32 dead[QUADS];
        float dithers[QUADS][LANES];
        if constexpr (USTATE_SECOND) {
            u32 ends[QUADS];
            agreed_endpoints<REPAIRED, USTATE_BLOCK>(seat, moments, ends);
            u32* const team_ends = seat.room.exchange + team_of_thread() * WARP_LANES;
            __syncwarp();
#pragma unroll
            for (u32 j = 0; j < QUADS; j++) {
                if (seat.quad(j) % USTATE_BLOCK == 0 || (USTATE_BLOCK > TEAM_ELEMENTS && lane_of_thread() == 0)) {
                    team_ends[(u32)seat.quad(j) % TEAM_ELEMENTS / USTATE_BLOCK] = ends[j];
                }
            }
            const OwnLevels levels(seat.room.tables);
            levels.fill([&](u32 block) { return team_ends[block]; },
                        [&](float v) { return encode_unit(seat.group, v); });
#pragma unroll
            for (u32 j = 0; j < QUADS; j++) {
                const Draws random = draws<REPAIRED>(step, seat, j);
                const Level* const own = levels.of(seat.quad(j));
                const u32 flags = OwnLevels::flags(own);
                for (u32 k = 0; k < LANES; k++) dithers[j][k] = random.dithers[k];
                u32 word;
                if (Seat::FULL && flags == OwnLevels::ASCENDS) {
                    word = encode_quad<true>(seat, j, own, flags, moments[j], random, q[j], dead[j]);
                } else {
                    word = encode_quad<false>(seat, j, own, flags, moments[j], random, q[j], dead[j]);
                }
                store_v_codes(seat, j, word);
                if (seat.has(j, 0) && seat.quad(j) % USTATE_BLOCK == 0) {
                    store_one<4>(seat.chunk.arrays[4] + seat.quad(j) / USTATE_BLOCK * 4, 0, ends[j]);
                }
            }
        } else {
#pragma unroll
            for (u32 j = 0; j < QUADS; j++) {
                const Draws random = draws<REPAIRED>(step, seat, j);
                store_plain(seat, j, seat.chunk.arrays[3], moments[j].v);
                dead[j] = 0;
                for (u32 k = 0; k < LANES; k++) {
                    dithers[j][k] = random.dithers[k];
                    const float unit = seat.has(j, k) ? encode_unit(seat.group, moments[j].v[k]) : 0.0f;
                    q[j][k] = unit == 0.0f ? 0.0f : normalised(seat, moments[j].m[k], unit);
                    if (unit == 0.0f) dead[j] |= 1u << k;
                }
            }
        }
        if constexpr (USTATE_FIRST) {
            encode_first(seat, q, dead, dithers);
        } else {
            for (u32 j = 0; j < QUADS; j++) store_plain(seat, j, seat.chunk.arrays[0], moments[j].m);
        }
    }

    // Adds the block to its tensor's sums; the last block of the tensor moves the scales on, or leaves what
    // they follow from where all parts of the tensor are added up.
    __device__ void finish(const Step& step, const Chunk& chunk, const Group& group,
                           SharedRoom& room) const {
        if constexpr (USTATE_FIRST) {
            __syncthreads();
            if (threadIdx.x != 0) return;
            UStateRecord* const shared = reinterpret_cast<UStateRecord*>(chunk.arrays[2]);
            for (u32 piece = 0; piece < 3; piece++) {
                atomicAdd(&shared->sums[piece], (u64)room.sums[piece]);
            }
            __threadfence();
            const u64 blocks = blocks_of(chunk.length, TILE_ELEMENTS * step.tiles);
            const u64 own = DONE + room.sums[3];
            const u64 all = atomicAdd(&shared->live_and_done, own) + own;
            if (all / DONE != blocks) return;
            __threadfence();
            u64 sums[3];
            for (u32 piece = 0; piece < 3; piece++) sums[piece] = atomicAdd(&shared->sums[piece], (u64)0);
            if (step.spreads) {
                double* const spreads = step.spreads + chunk.spreads * SPREAD_NUMBERS;
                for (u32 piece = 0; piece < 3; piece++) {
                    spreads[piece] = (double)sums[piece];
                    shared->sums[piece] = 0;
                }
                spreads[3] = (double)(all % DONE);
                shared->live_and_done = 0;
                return;
            }
            const u64 live = REPAIRED ? all % DONE : chunk.length;
            *shared = next_record(record_of(room), sums, live, group, step.control->update);
        }
    }

  private:
    // The codes of second moments of a quad, and the normalised updates over what they store.
    template <bool IS_SIMPLE, class Seat>
    __device__ static u32 encode_quad(const Seat& seat, u32 j, const Level* levels, u32 flags,
                                      const Quad& moments, const Draws& random, float* q, u32& dead) {
        u32 word = 0;
        dead = 0;
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            const u32 code =
                OwnLevels::template code<IS_SIMPLE>(levels, flags, moments.v[k], random.uniforms[k]);
            const float unit = levels[code].unit;
            q[k] = normalised(seat, moments.m[k], unit);
            if (IS_SIMPLE || seat.has(j, k)) word |= code << (USTATE_V_BITS * k);
            if (!IS_SIMPLE && !seat.has(j, k)) q[k] = 0.0f;
            if (!IS_SIMPLE && (unit == 0.0f || !seat.has(j, k))) dead |= 1u << k;
        }
        return word;
    }

    // ---- First moments.

    // The unit of a first moment before the correction of its bias.
    __device__ static float unit(const Group& group, float root, float rms_scale) {
        return REPAIRED ? __fmul_rn(root, rms_scale) : __fmaf_rn(root, rms_scale, group.eps);
    }
    // What a stored normalised update is multiplied by, and a first moment to become one: zero where
    // the second moment is kept as zero.
    template <class Seat>
    __device__ static float decode_unit(const Seat& seat, float root) {
        if (!USTATE_FIRST) return 0.0f;
        const UStateRecord& record = record_of(seat.room);
        return __fmul_rn(record.correction, unit(seat.group, root, record.rms_scale));
    }
    __device__ static float encode_unit(const Group& group, float v) {
        if (!USTATE_FIRST || is_kept_as_zero<REPAIRED>(v)) return 0.0f;
        const float own = unit(group, root_of(v), group.rms_scale);
        const bool is_plain = own >= power_of_two(-60) && own <= power_of_two(60);
        return is_plain ? quick_quotient(group.inverse_correction, own)
                        : __fdiv_rn(group.inverse_correction, own);
    }
    __device__ static float root_of(float v) {
        return v >= power_of_two(-100) && v <= power_of_two(60) ? quick_root(v) : __fsqrt_rn(v);
    }
    template <class Seat>
    __device__ static float normalised(const Seat& seat, float m, float unit) {
        const float q = __fmul_rn(m, unit);
        return REPAIRED ? within(q, seat.group.normalised_max) : q;
    }

    // Plain first moments of a quad; or, for all of them to be centred, codes as they are, with the units
    // beside them in place of roots, and live elements and the sum of their codes in `sums`.
    template <class Seat>
    __device__ void decode_first(const Stored& stored, const Seat& seat, u32 j, bool is_live,
                                 const float* units, Quad& moments) const {
        if constexpr (USTATE_FIRST) {
            for (u32 k = 0; k < LANES; k++) {
                moments.r[k] = is_live || !is_kept_as_zero<REPAIRED>(moments.v[k]) ? units[k] : 0.0f;
            }
            u32 sums = 0;
            const u32 byte = stored.m_codes >> (8 * j) & 0xFF;
            if (is_live) {
                sums = (LANES << 16) + __popc(byte & 0x55u) + 2 * __popc(byte & 0xAAu);
            } else {
#pragma unroll
                for (u32 k = 0; k < LANES; k++) {
                    const bool counts = seat.has(j, k) && !is_kept_as_zero<REPAIRED>(moments.v[k]);
                    if (counts) sums += (1u << 16) + (byte >> (2 * k) & 3);
                }
            }
            moments.m[0] = as_float(sums);
        } else {
            load_plain(seat, j, seat.chunk.arrays[0], moments.m);
            for (u32 k = 0; k < LANES; k++) {
                if (REPAIRED) moments.v[k] = at_least_ratio(moments.m[k], moments.v[k], seat.group);
            }
        }
    }

    // Turns codes into first moments whose normalised updates have the stored means.
    template <class Seat>
    __device__ void center(const Stored& stored, const Seat& seat, Quad* moments) const {
        const UStateRecord& record = record_of(seat.room);
        u32 sums[QUADS] = {as_bits(moments[0].m[0]), as_bits(moments[1].m[0])};
        fold<AddWords, USTATE_MEAN_BLOCK>(seat.room, sums);
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const float code_mean = averaged(__int2float_rn((i32)(sums[j] & 0xFFFF)), sums[j] >> 16);
            const float mean = bf16_to_f32(stored.means[j]);
#pragma unroll
            for (u32 k = 0; k < LANES; k++) {
                const float code = __int2float_rn((i32)(stored.m_codes >> (8 * j + 2 * k) & 3));
                float q = __fmaf_rn(record.decode_scale, __fsub_rn(code, code_mean), mean);
                if (REPAIRED) q = within(q, record.normalised_max);
                moments[j].m[k] = __fmul_rn(q, moments[j].r[k]);
            }
        }
    }

    // A sum over a count; a whole block's is a power of two, whose inverse is exact.
    __device__ static float averaged(float sum, u32 count) {
        if (count == USTATE_MEAN_BLOCK) return __fmul_rn(sum, 1.0f / USTATE_MEAN_BLOCK);
        return count == 0 ? 0.0f : __fdiv_rn(sum, __int2float_rn((i32)count));
    }

    template <class Seat>
    __device__ void encode_first(const Seat& seat, const float (*q)[LANES], const u32* dead,
                                 const float (*dithers)[LANES]) const {
        u32 live[QUADS], sums[QUADS], mean_bits[QUADS], spreads[QUADS];
        for (u32 j = 0; j < QUADS; j++) {
            live[j] = USTATE_MEAN_BLOCK;
            sums[j] = as_bits(sum_of_four(q[j]));
        }
        const bool has_dead = __any_sync(0xFFFFFFFFu, (dead[0] | dead[1]) != 0);
        if (has_dead) {
            for (u32 j = 0; j < QUADS; j++) live[j] = LANES - __popc(dead[j]);
            fold<AddWords, USTATE_MEAN_BLOCK>(seat.room, live);
        }
        fold<AddFloats, USTATE_MEAN_BLOCK>(seat.room, sums);
        const float inverse_scale = ustate_inverse(record_of(seat.room).encode_scale);
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            mean_bits[j] = live[j] == 0 ? 0 : bf16_nearest(averaged(as_float(sums[j]), live[j]));
            const float mean = bf16_to_f32(mean_bits[j]);
            float squares[LANES];
            u32 byte = 0;
#pragma unroll
            for (u32 k = 0; k < LANES; k++) {
                const float distance = __fsub_rn(q[j][k], mean);
                squares[k] = __fmul_rn(distance, distance);
                byte |= ustate_code(distance, inverse_scale, dithers[j][k]) << (2 * k);
            }
            if (has_dead) {
#pragma unroll
                for (u32 k = 0; k < LANES; k++) {
                    if (!(dead[j] >> k & 1)) continue;
                    squares[k] = 0.0f;
                    byte &= ~(3u << (2 * k));
                }
            }
            spreads[j] = as_bits(sum_of_four(squares));
            if (seat.has(j, 0)) store_byte(seat.chunk.arrays[0] + seat.quad(j) / 4, byte);
        }
        fold<AddFloats, USTATE_MEAN_BLOCK>(seat.room, spreads);
        if (speaks_for_block<USTATE_MEAN_BLOCK>()) {
            const u32 j = spoken_quad();
            const u32 first = (u32)seat.quad(0) / USTATE_MEAN_BLOCK + j * (ROW_ELEMENTS / USTATE_MEAN_BLOCK);
            if (!seat.template has_block<USTATE_MEAN_BLOCK>(first)) return;
            store_one<2>(seat.chunk.arrays[1] + first * 2, 0, j == 0 ? mean_bits[0] : mean_bits[1]);
            const SquarePieces own(as_float(j == 0 ? spreads[0] : spreads[1]));
            for (u32 piece = 0; piece < 3; piece++) atomicAdd(&seat.room.sums[piece], own.pieces[piece]);
            atomicAdd(&seat.room.sums[3], j == 0 ? live[0] : live[1]);
        }
    }

    __device__ static float sum_of_four(const float* x) {
        return __fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(x[2], x[3]));
    }

    // ---- Second moments in memory.

    template <class Seat>
    __device__ static u64 v_address(const Seat& seat, u32 j) {
        return seat.chunk.arrays[3] + seat.quad(j) * USTATE_V_BITS / 8;
    }

    // The codes of v of four elements, in the low bits of a word. Of three bits, two threads share three
    // bytes, and the address is the byte in which this one's begin.
    __device__ static u32 load_v_codes(u64 address) {
        if constexpr (USTATE_V_BITS == 2) return load_byte(address);
        if constexpr (USTATE_V_BITS == 4) return load_one<2>(address, 0);
        if constexpr (USTATE_V_BITS == 8) return load_one<4>(address, 0);
        if constexpr (USTATE_V_BITS == 6) {
            return load_byte(address) | load_byte(address + 1) << 8 | load_byte(address + 2) << 16;
        }
        return (load_byte(address) | load_byte(address + 1) << 8) >> (threadIdx.x & 1 ? 4 : 0);
    }

    template <class Seat>
    __device__ static void store_v_codes(const Seat& seat, u32 j, u32 word) {
        const u64 address = v_address(seat, j);
        if constexpr (USTATE_V_BITS == 3) {
            word |= __shfl_xor_sync(0xFFFFFFFFu, word, 1) << 12;
            if ((threadIdx.x & 1) != 0) return;
        }
        if (!seat.has(j, 0)) return;
        if constexpr (USTATE_V_BITS == 2) store_byte(address, word);
        if constexpr (USTATE_V_BITS == 4) store_one<2>(address, 0, word);
        if constexpr (USTATE_V_BITS == 8) store_one<4>(address, 0, word);
        if constexpr (USTATE_V_BITS == 6 || USTATE_V_BITS == 3) {
            for (u32 byte = 0; byte < 3; byte++) store_byte(address + byte, word >> (8 * byte) & 0xFF);
        }
    }

    // A moment that is f32.
    template <class Seat>
    __device__ static void load_plain(const Seat& seat, u32 j, u64 array, float* numbers) {
        for (u32 k = 0; k < LANES; k++) {
            numbers[k] = seat.has(j, k) ? as_float(load_one<4>(array, seat.quad(j) + k)) : 0.0f;
        }
    }
    template <class Seat>
    __device__ static void store_plain(const Seat& seat, u32 j, u64 array, const float* numbers) {
        for (u32 k = 0; k < LANES; k++) {
            if (seat.has(j, k)) store_one<4>(array, seat.quad(j) + k, as_bits(numbers[k]));
        }
    }
};
