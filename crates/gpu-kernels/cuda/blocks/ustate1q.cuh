// Blocks of ustate1q: 2-bit codes of the normalised update, second moments on grids of logarithms; or
// either of them as f32; twin of optimizer/src/cpu/ustate1q.rs.
#pragma once

#include "blocks/grid.cuh"
#include "blocks/ustate_record.cuh"
#include "codec/ustate.cuh"

static_assert(sizeof(UStateRecord) == ARRAY_BYTES, "the record fills its array");

// What a block finds out once, in the room that threads share. In the mended format the unit of all elements but
// for the root is taken into scale, mean and bound.
struct UStateUnits {
    float common;
    float scale;
    float bound;
    // What a first moment, but for the root, is multiplied by to become a normalised update.
    float inverse_unit;
    // A quarter of the inverse of the scale to encode with.
    float inverse_quarter;
    float encode_scale;
    // Of the published format.
    float correction;
    float rms_scale;
};

struct UStateState {
    static constexpr bool REPAIRED = USTATE_REPAIRED;
    static constexpr bool DECAYS_LAST = false;
    static constexpr bool HAS_BIAS = false;
    typedef Levels<REPAIRED, USTATE_V_BITS, USTATE_BLOCK> OwnLevels;
    typedef LaneLevels<REPAIRED, USTATE_V_BITS, USTATE_BLOCK> OwnLaneLevels;
    static_assert(!(KINDS & USTATE_KINDS) || OwnLevels::WORDS <= SHARED_TABLE_WORDS, "room");
    // What this thread's elements have added up to: pieces of squares. Elements without a first moment, of which
    // there are few, are counted for all threads together.
    u32 high = 0;
    u32 low = 0;

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
                    m_codes |= load_byte(m_address(seat, j)) << (8 * j);
                    means[j] = load_one<2>(mean_address(seat, j), 0);
                }
                if constexpr (USTATE_SECOND) v_codes[j] = load_v_codes(v_address(seat, j));
            }
        }
    };

    __device__ UStateState(const Step&, const Chunk& chunk, const Group& group, SharedRoom& room) {
        if (USTATE_FIRST && threadIdx.x == 0) {
            room.dead = 0;
            const UStateRecord& record = *reinterpret_cast<const UStateRecord*>(chunk.arrays[2]);
            UStateUnits& units = units_of(room);
            units.common = REPAIRED ? __fmul_rn(record.correction, record.rms_scale) : 1.0f;
            units.scale = __fmul_rn(units.common, record.decode_scale);
            units.bound = __fmul_rn(units.common, record.normalised_max);
            units.inverse_unit = __fdiv_rn(group.inverse_correction, group.rms_scale);
            units.inverse_quarter = __fmul_rn(ustate_inverse(record.encode_scale), 0.25f);
            units.encode_scale = record.encode_scale;
            units.correction = record.correction;
            units.rms_scale = record.rms_scale;
        }
        __syncthreads();
    }

    __device__ static UStateUnits& units_of(SharedRoom& room) {
        return *reinterpret_cast<UStateUnits*>(room.units);
    }

    template <class Seat>
    __device__ void decode(const Stored& stored, const Seat& seat, Quad* moments) const {
        bool has_dead = true;
        if constexpr (USTATE_SECOND) {
            const u32 team_block = ((u32)seat.at - lane_of_thread() * LANES) / USTATE_BLOCK;
            const auto endpoints = [&](u32 block) {
                const u32 number = team_block + block;
                if (!seat.template has_block<USTATE_BLOCK>(number)) return 0u;
                return load_one<4>(seat.chunk.arrays[4], number);
            };
            if constexpr (OwnLevels::ARE_IN_LANES) {
                const OwnLaneLevels levels(endpoints(OwnLaneLevels::block()));
                has_dead = __any_sync(0xFFFFFFFFu, levels.root == 0.0f);
#pragma unroll
                for (u32 j = 0; j < QUADS; j++) {
                    u32 lanes[LANES];
                    lanes_of_codes(stored.v_codes[j], OwnLaneLevels::base(j), lanes);
#pragma unroll
                    for (u32 k = 0; k < LANES; k++) {
                        moments[j].r[k] = __shfl_sync(0xFFFFFFFFu, levels.root, lanes[k]);
                    }
                }
            } else {
                const OwnLevels levels(seat.room.tables);
                has_dead = levels.fill(endpoints, [](float root) { return root; });
                for (u32 j = 0; j < QUADS; j++) {
                    const Level* const own = levels.of(seat.quad(j));
                    for (u32 k = 0; k < LANES; k++) moments[j].r[k] = own[v_code(stored, j, k)].unit;
                }
            }
#pragma unroll
            for (u32 j = 0; j < QUADS; j++) {
                for (u32 k = 0; k < LANES; k++) {
                    moments[j].v[k] = __fmul_rn(moments[j].r[k], moments[j].r[k]);
                }
            }
        } else {
            for (u32 j = 0; j < QUADS; j++) {
                load_plain(seat, j, seat.chunk.arrays[3], moments[j].v);
                for (u32 k = 0; k < LANES; k++) moments[j].r[k] = __fsqrt_rn(moments[j].v[k]);
            }
        }
        if constexpr (USTATE_FIRST) {
            decode_first(stored, seat, !Seat::FULL || has_dead, moments);
        } else {
            for (u32 j = 0; j < QUADS; j++) {
                load_plain(seat, j, seat.chunk.arrays[0], moments[j].m);
                for (u32 k = 0; k < LANES; k++) {
                    if (REPAIRED) moments[j].v[k] = at_least_ratio(moments[j].m[k], moments[j].v[k], seat.group);
                }
            }
        }
    }

    template <class Seat>
    __device__ void encode(const Step& step, const Seat& seat, const Quad* moments) {
        float q[QUADS][LANES];
        // A bit for each element without a first moment.
        u32 dead[QUADS];
        float dithers[QUADS][LANES];
        if constexpr (USTATE_SECOND) {
            encode_second(step, seat, moments, q, dead, dithers);
        } else {
#pragma unroll
            for (u32 j = 0; j < QUADS; j++) {
                const Draws random = draws<REPAIRED>(step, seat, j);
                store_plain(seat, j, seat.chunk.arrays[3], moments[j].v);
                dead[j] = 0;
                for (u32 k = 0; k < LANES; k++) {
                    dithers[j][k] = random.dithers[k];
                    const float root = __fsqrt_rn(moments[j].v[k]);
                    const float unit = seat.has(j, k) ? encode_unit(seat, root) : 0.0f;
                    q[j][k] = __fmul_rn(moments[j].m[k], unit);
                    if (unit == 0.0f) {
                        q[j][k] = 0.0f;
                        dead[j] |= 1u << k;
                    }
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
            const u32 own[] = {__reduce_add_sync(0xFFFFFFFFu, high), __reduce_add_sync(0xFFFFFFFFu, low)};
            __syncthreads();
            if (lane_of_thread() == 0) {
                for (u32 piece = 0; piece < 2; piece++) room.exchange[team_of_thread() * 2 + piece] = own[piece];
            }
            __syncthreads();
            if (threadIdx.x != 0) return;
            u64 sums[2] = {};
            for (u32 team = 0; team < THREADS / WARP_LANES; team++) {
                for (u32 piece = 0; piece < 2; piece++) sums[piece] += room.exchange[team * 2 + piece];
            }
            UStateRecord* const shared = reinterpret_cast<UStateRecord*>(chunk.arrays[2]);
            for (u32 piece = 0; piece < 2; piece++) atomicAdd(&shared->sums[piece], sums[piece]);
            __threadfence();
            const u64 blocks = blocks_of(chunk.length, TILE_ELEMENTS * step.tiles);
            const u64 done = DONE + chunk.end - room.dead;
            const u64 all = atomicAdd(&shared->live_and_done, done) + done;
            if (all / DONE != blocks) return;
            __threadfence();
            for (u32 piece = 0; piece < 2; piece++) sums[piece] = atomicAdd(&shared->sums[piece], (u64)0);
            if (step.spreads) {
                double* const spreads = step.spreads + chunk.spreads * SPREAD_NUMBERS;
                for (u32 piece = 0; piece < 2; piece++) {
                    spreads[piece] = (double)sums[piece];
                    shared->sums[piece] = 0;
                }
                spreads[2] = (double)(all % DONE);
                shared->live_and_done = 0;
                return;
            }
            const u64 live = REPAIRED ? all % DONE : chunk.length;
            *shared = next_record(units_of(room).encode_scale, sums, live, group, step.control->update);
        }
    }

  private:
    __device__ static u32 v_code(const Stored& stored, u32 j, u32 k) {
        return stored.v_codes[j] >> (USTATE_V_BITS * k) & (OwnLevels::COUNT - 1);
    }

    // Where the levels of four codes are, in the lower five bits of words.
    __device__ static void lanes_of_codes(u32 codes, u32 base, u32* lanes) {
        if constexpr (USTATE_V_BITS == 4) {
            const u32 even = (codes & 0x0F0Fu) | base * 0x0101u;
            const u32 odd = (codes >> 4 & 0x0F0Fu) | base * 0x0101u;
            lanes[0] = even;
            lanes[1] = odd;
            lanes[2] = even >> 8;
            lanes[3] = odd >> 8;
        } else {
            for (u32 k = 0; k < LANES; k++) {
                lanes[k] = (codes >> (USTATE_V_BITS * k) & (OwnLevels::COUNT - 1)) | base;
            }
        }
    }

    // ---- Second moments.

    // Stores second moments, and leaves normalised updates over what is stored.
    template <class Seat>
    __device__ void encode_second(const Step& step, const Seat& seat, const Quad* moments,
                                  float (*q)[LANES], u32* dead, float (*dithers)[LANES]) const {
        u32 ends[QUADS];
        agreed_endpoints<REPAIRED, USTATE_BLOCK>(seat, moments, ends);
        if constexpr (Seat::FULL && OwnLevels::ARE_IN_LANES) {
            const OwnLaneLevels levels(OwnLaneLevels::block() == 0 ? ends[0] : ends[1]);
            if (levels.are_plain()) {
                const float unit = encode_unit(seat, levels.root);
                const Guesses<OwnLaneLevels> guesses(levels);
                u32 words[QUADS], are_right = ~0u;
#pragma unroll
                for (u32 j = 0; j < QUADS; j++) {
                    const Draws random = draws<REPAIRED>(step, seat, j);
                    dead[j] = 0;
                    words[j] = guessed_quad(guesses, unit, j, moments[j], random, q[j], are_right);
#pragma unroll
                    for (u32 k = 0; k < LANES; k++) dithers[j][k] = random.dithers[k];
                }
                if (__all_sync(0xFFFFFFFFu, (i32)are_right < 0)) {
                    store_second(seat, words, ends);
                    return;
                }
            }
        }
        encode_second_with_care(step, seat, moments, ends, q, dead, dithers);
    }

    // The codes of a quad's second moments, and the normalised updates over what they store, if guesses are
    // right: the sign bit of `are_right` falls where one is not.
    template <class Guesses>
    __device__ static u32 guessed_quad(const Guesses& guesses, float unit, u32 j, const Quad& moments,
                                       const Draws& random, float* q, u32& are_right) {
        const auto guess = guesses.of(j);
        u32 word = 0;
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            const u32 lane = guess.lane(moments.v[k]);
            const float value = __shfl_sync(0xFFFFFFFFu, guesses.value, lane);
            const float width = __shfl_sync(0xFFFFFFFFu, guesses.width, lane);
            const float distance = __fsub_rn(moments.v[k], value);
            are_right &= ~as_bits(distance) & as_bits(__fsub_rn(distance, width));
            const u32 own = lane + (upper_sign(distance, width, random.uniforms[k]) >> 31);
            q[k] = __fmul_rn(moments.m[k], __shfl_sync(0xFFFFFFFFu, unit, own));
            word += own << (USTATE_V_BITS * k);
        }
        // What is not of codes is known.
        u32 rest = 0;
        for (u32 k = 0; k < LANES; k++) rest += as_bits(guess.counter) << (USTATE_V_BITS * k);
        return word - rest;
    }

    // The same whatever the levels are.
    template <class Seat>
    __device__ __forceinline__ static void encode_second_with_care(const Step& step, const Seat& seat,
                                                   const Quad* moments, const u32* ends,
                                                   float (*q)[LANES], u32* dead,
                                                   float (*dithers)[LANES]) {
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
                    [&](float root) { return encode_unit(seat, root); });
        u32 words[QUADS];
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const Draws random = draws<REPAIRED>(step, seat, j);
            const Level* const own = levels.of(seat.quad(j));
            words[j] = 0;
            dead[j] = 0;
#pragma unroll
            for (u32 k = 0; k < LANES; k++) {
                dithers[j][k] = random.dithers[k];
                const u32 code = OwnLevels::code(own, moments[j].v[k], random.uniforms[k]);
                const bool is_dead = own[code].unit == 0.0f || !seat.has(j, k);
                q[j][k] = is_dead ? 0.0f : __fmul_rn(moments[j].m[k], own[code].unit);
                if (is_dead) dead[j] |= 1u << k;
                if (seat.has(j, k)) words[j] |= code << (USTATE_V_BITS * k);
            }
        }
        store_second(seat, words, ends);
    }

    template <class Seat>
    __device__ static void store_second(const Seat& seat, const u32* words, const u32* ends) {
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            store_v_codes(seat, j, words[j]);
            if (seat.has(j, 0) && seat.quad(j) % USTATE_BLOCK == 0) {
                store_one<4>(seat.chunk.arrays[4], (u32)seat.quad(j) / USTATE_BLOCK, ends[j]);
            }
        }
    }

    // ---- First moments.

    // What a first moment is multiplied by to become a normalised update, given the root of its second
    // moment as stored: zero where that is kept as zero.
    template <class Seat>
    __device__ static float encode_unit(const Seat& seat, float root) {
        if (!USTATE_FIRST || is_kept_as_zero<REPAIRED>(__fmul_rn(root, root))) return 0.0f;
        if constexpr (REPAIRED) {
            return __fmul_rn(quick_inverse(root), units_of(seat.room).inverse_unit);
        }
        const Group& group = seat.group;
        return __fdiv_rn(group.inverse_correction, __fmaf_rn(root, group.rms_scale, group.eps));
    }

    // First moments whose normalised updates have the stored means. With `has_dead` some elements may have none.
    template <class Seat>
    __device__ static void decode_first(const Stored& stored, const Seat& seat, bool has_dead,
                                        Quad* moments) {
        const UStateUnits& units = units_of(seat.room);
        const u32 spread = ustate_spread(stored.m_codes);
        float code_means[QUADS];
        u32 is_live = ~0u;
        if (has_dead) {
            is_live = average_of_live_codes(stored, seat, moments, code_means);
        } else {
            average_of_codes(spread, code_means);
        }
        float offsets[QUADS];
        bool is_far = false;
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const float mean = __fmul_rn(units.common, bf16_to_f32(stored.means[j]));
            offsets[j] = ustate_offset(units.scale, code_means[j], mean);
            is_far |= !(__fmaf_rn(4.0f, units.scale, offsets[j]) >= -units.bound);
            is_far |= !(__fmaf_rn(7.0f, units.scale, offsets[j]) <= units.bound);
        }
        // Most often nothing lies beyond the bound.
        is_far = __any_sync(0xFFFFFFFFu, is_far);
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
#pragma unroll
            for (u32 k = 0; k < LANES; k++) {
                const u32 bytes = ustate_bytes(spread >> (16 * j));
                moments[j].m[k] = ustate_value(bytes, k, units.scale, offsets[j]);
            }
        }
        if (REPAIRED && is_far) {
            for (u32 j = 0; j < QUADS; j++) {
                for (u32 k = 0; k < LANES; k++) moments[j].m[k] = within(moments[j].m[k], units.bound);
            }
        }
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
#pragma unroll
            for (u32 k = 0; k < LANES; k++) {
                float unit = moments[j].r[k];
                if (!REPAIRED) unit = __fmul_rn(units.correction, __fmaf_rn(unit, units.rms_scale, seat.group.eps));
                moments[j].m[k] = __fmul_rn(moments[j].m[k], unit);
            }
        }
        if (has_dead) {
            for (u32 j = 0; j < QUADS; j++) {
                for (u32 k = 0; k < LANES; k++) {
                    if (!(is_live >> (4 * j + k) & 1)) moments[j].m[k] = 0.0f;
                }
            }
        }
    }

    // The averages of the codes of each quad's block, if all elements count.
    __device__ static void average_of_codes(u32 spread, float* code_means) {
        u32 both = ustate_sums(spread);
        if constexpr (USTATE_MEAN_BLOCK <= ROW_ELEMENTS) {
            both = folded_in_warp<AddWords, USTATE_MEAN_BLOCK / LANES>(both);
        } else {
            both = folded_in_warp<AddWords, WARP_LANES>(both);
            both += both >> 16 | both << 16;
        }
        code_means[0] = __fmul_rn(__int2float_rn((i32)(both & 0xFFFF)), 1.0f / USTATE_MEAN_BLOCK);
        code_means[1] = __fmul_rn(__int2float_rn((i32)(both >> 16)), 1.0f / USTATE_MEAN_BLOCK);
    }

    // The same of those that have a first moment, of which a bit each is returned.
    template <class Seat>
    __device__ static u32 average_of_live_codes(const Stored& stored, const Seat& seat,
                                                const Quad* moments, float* code_means) {
        u32 sums[QUADS] = {}, is_live = 0;
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
#pragma unroll
            for (u32 k = 0; k < LANES; k++) {
                const u32 code = stored.m_codes >> (8 * j + 2 * k) & 3;
                if (!seat.has(j, k) || is_kept_as_zero<REPAIRED>(moments[j].v[k])) continue;
                sums[j] += (1u << 16) + code;
                is_live |= 1u << (4 * j + k);
            }
        }
        fold<AddWords, USTATE_MEAN_BLOCK>(seat.room, sums);
        for (u32 j = 0; j < QUADS; j++) {
            code_means[j] = averaged(__int2float_rn((i32)(sums[j] & 0xFFFF)), sums[j] >> 16);
        }
        return is_live;
    }

    // A sum over a count. Where it is known that all elements of a block count, it is a product.
    __device__ static float averaged(float sum, u32 count) {
        return count == 0 ? 0.0f : __fdiv_rn(sum, __int2float_rn((i32)count));
    }

    template <class Seat>
    __device__ void encode_first(const Seat& seat, float (*q)[LANES], const u32* dead,
                                 const float (*dithers)[LANES]) {
        if constexpr (REPAIRED) keep_within(seat, q);
        u32 counts[QUADS], sums[QUADS], mean_bits[QUADS];
        for (u32 j = 0; j < QUADS; j++) {
            counts[j] = USTATE_MEAN_BLOCK;
            sums[j] = as_bits(__fadd_rn(__fadd_rn(q[j][0], q[j][1]), __fadd_rn(q[j][2], q[j][3])));
        }
        const bool has_dead = __any_sync(0xFFFFFFFFu, (dead[0] | dead[1]) != 0);
        if (has_dead) {
            u32 own = 0;
            for (u32 j = 0; j < QUADS; j++) {
                counts[j] = LANES - __popc(dead[j]);
                for (u32 k = 0; k < LANES; k++) own += seat.has(j, k) ? dead[j] >> k & 1 : 0;
            }
            own = __reduce_add_sync(0xFFFFFFFFu, own);
            if (lane_of_thread() == 0) atomicAdd(&seat.room.dead, own);
            fold<AddWords, USTATE_MEAN_BLOCK>(seat.room, counts);
        }
        fold<AddFloats, USTATE_MEAN_BLOCK>(seat.room, sums);
        const float inverse_quarter = units_of(seat.room).inverse_quarter;
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            float average = __fmul_rn(as_float(sums[j]), 1.0f / USTATE_MEAN_BLOCK);
            if (has_dead) average = averaged(as_float(sums[j]), counts[j]);
            mean_bits[j] = bf16_nearest(average);
            const float mean = bf16_to_f32(mean_bits[j]);
            float distances[LANES];
            u32 byte = 0;
#pragma unroll
            for (u32 k = 0; k < LANES; k++) {
                distances[k] = __fsub_rn(q[j][k], mean);
                byte += ustate_code(distances[k], inverse_quarter, dithers[j][k]) << (2 * k);
            }
            if (has_dead) {
#pragma unroll
                for (u32 k = 0; k < LANES; k++) {
                    if (!(dead[j] >> k & 1)) continue;
                    distances[k] = 0.0f;
                    byte &= ~(3u << (2 * k));
                }
            }
            const SquarePieces own(distances);
            high += own.high;
            low += own.low;
            if (seat.has(j, 0)) store_byte(m_address(seat, j), byte);
        }
        if (speaks_for_block<USTATE_MEAN_BLOCK>()) {
            const u32 j = spoken_quad();
            const u32 number = (u32)seat.at / USTATE_MEAN_BLOCK + j * (ROW_ELEMENTS / USTATE_MEAN_BLOCK);
            if (!seat.template has_block<USTATE_MEAN_BLOCK>(number)) return;
            store_one<2>(seat.chunk.arrays[1], number, j == 0 ? mean_bits[0] : mean_bits[1]);
        }
    }

    // Moves normalised updates that no exact moments have to the bound. Most often there are none.
    template <class Seat>
    __device__ static void keep_within(const Seat& seat, float (*q)[LANES]) {
        float largest = 0.0f;
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
#pragma unroll
            for (u32 k = 0; k < LANES; k++) largest = fmaxf(largest, fabsf(q[j][k]));
        }
        if (!__any_sync(0xFFFFFFFFu, largest > seat.group.normalised_max)) return;
        for (u32 j = 0; j < QUADS; j++) {
            for (u32 k = 0; k < LANES; k++) q[j][k] = within(q[j][k], seat.group.normalised_max);
        }
    }

    // ---- Second moments in memory.

    template <class Seat>
    __device__ static u64 v_address(const Seat& seat, u32 j) {
        return seat.chunk.arrays[3] + (u32)seat.at * USTATE_V_BITS / 8 + j * (ROW_ELEMENTS * USTATE_V_BITS / 8);
    }
    template <class Seat>
    __device__ static u64 m_address(const Seat& seat, u32 j) {
        return seat.chunk.arrays[0] + (u32)seat.at / 4 + j * (ROW_ELEMENTS / 4);
    }
    template <class Seat>
    __device__ static u64 mean_address(const Seat& seat, u32 j) {
        return seat.chunk.arrays[1] + (u32)seat.at / USTATE_MEAN_BLOCK * 2 + j * (ROW_ELEMENTS / USTATE_MEAN_BLOCK * 2);
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
