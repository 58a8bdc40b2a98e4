// Blocks of ustate1q: 2-bit codes of the normalised update, second moments on grids of logarithms; or
// either of them as f32; twin of optimizer/src/cpu/ustate1q.rs.
#pragma once

#include "blocks/grid.cuh"
#include "blocks/ustate_memory.cuh"
#include "blocks/ustate_record.cuh"
#include "codec/ustate.cuh"

static_assert(sizeof(UStateRecord) == ARRAY_BYTES, "the record fills its array");

struct UStateState : UStateMemory {
    static constexpr bool REPAIRED = USTATE_REPAIRED;
    static constexpr bool DECAYS_LAST = false;
    static constexpr bool HAS_BIAS = false;
    // What extremes are found of.
    static constexpr bool BY_ROOT = false;
    // So small a second moment is kept as zero, or at least has no quick root.
    static constexpr float TOO_SMALL = ZERO_MAX;
    // Elements of the blocks that threads agree on.
    static constexpr u32 BLOCK = USTATE_BLOCK;
    typedef Levels<REPAIRED, USTATE_V_BITS, USTATE_BLOCK> OwnLevels;
    typedef LaneLevels<REPAIRED, USTATE_V_BITS, USTATE_BLOCK> Lanes;
    typedef Guesses<REPAIRED, USTATE_V_BITS, Lanes> OwnGuesses;
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
            units.middle_max = __fmaf_rn(-1.5f, units.scale, __fmul_rn(units.bound, 1.0f - 1.0f / 1048576.0f));
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

    // What all quads of a thread are decoded with.
    struct Decoding {
        // Of the level that this lane holds.
        float root;
        // Codes of first moments, spread to four bits each, and where what they stand for begins.
        u32 spread;
        float offsets[QUADS];
        // A bit for each element that has a first moment.
        u32 is_live;
        // Whether, as far as this lane knows, all of them have one.
        bool is_plain;
        // Whether some of a warp may lie beyond the bound, as during a model's first updates.
        bool is_far;
    };

    template <class Seat>
    __device__ static Decoding begin_decode(const Stored& stored, const Seat& seat) {
        Decoding decoding = {};
        decoding.is_plain = true;
        if constexpr (USTATE_SECOND) {
            const u32 team_block = ((u32)seat.at - lane_of_thread() * LANES) / USTATE_BLOCK;
            const auto endpoints = [&](u32 block) {
                const u32 number = team_block + block;
                if (!seat.template has_block<USTATE_BLOCK>(number)) return 0u;
                return load_one<4>(seat.chunk.arrays[4], number);
            };
            if constexpr (OwnLevels::ARE_IN_LANES) {
                decoding.root = Lanes::root(endpoints(Lanes::block()));
                decoding.is_plain = decoding.root != 0.0f;
            } else {
                const OwnLevels levels(seat.room.tables);
                decoding.is_plain = !levels.fill(endpoints, [](float root) { return root; });
            }
        }
        if constexpr (USTATE_FIRST && !USTATE_SECOND && Seat::QUICK) {
            // Levels say whether one is zero; second moments that are f32 are asked themselves.
            for (u32 j = 0; j < QUADS; j++) {
                float v[LANES];
                load_plain(seat, j, seat.chunk.arrays[3], v);
                for (u32 k = 0; k < LANES; k++) decoding.is_plain &= !is_kept_as_zero<REPAIRED>(v[k]);
            }
        }
        if constexpr (USTATE_FIRST) begin_first(stored, seat, decoding);
        return decoding;
    }

    template <class Seat>
    __device__ static void decode(const Decoding& decoding, const Stored& stored, const Seat& seat, u32 j,
                                  Quad& moments) {
        decode_second(decoding, stored, seat, j, moments);
        if constexpr (USTATE_FIRST) {
            decode_first(decoding, seat, j, moments);
        } else {
            load_plain(seat, j, seat.chunk.arrays[0], moments.m);
            for (u32 k = 0; k < LANES; k++) {
                if (REPAIRED) moments.v[k] = at_least_ratio(moments.m[k], moments.v[k], seat.group);
            }
        }
    }

    // Stores moments, and whatever else is to be stored with them; returns false if nothing was, since quick steps would
    // not do.
    template <class Seat, class Store>
    __device__ bool encode(const Step& step, const Seat& seat, const Quad* moments, const Store& store_others) {
        float q[QUADS][LANES], dithers[QUADS][LANES];
        // A bit for each element without a first moment.
        u32 dead[QUADS] = {};
        if constexpr (Seat::QUICK && USTATE_SECOND && OwnLevels::ARE_IN_LANES) {
            if (!encode_guessed(step, seat, moments, q, dithers, store_others)) return false;
        } else {
            store_others();
            if constexpr (USTATE_SECOND) {
                encode_second(step, seat, moments, q, dead, dithers);
            } else {
                keep_second(step, seat, moments, q, dead, dithers);
            }
        }
        if constexpr (USTATE_FIRST) {
            encode_first(seat, q, dead, dithers);
        } else {
            for (u32 j = 0; j < QUADS; j++) store_plain(seat, j, seat.chunk.arrays[0], moments[j].m);
        }
        return true;
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

    // Second moments of a quad, and their roots.
    template <class Seat>
    __device__ static void decode_second(const Decoding& decoding, const Stored& stored, const Seat& seat, u32 j,
                                         Quad& moments) {
        if constexpr (!USTATE_SECOND) {
            load_plain(seat, j, seat.chunk.arrays[3], moments.v);
            for (u32 k = 0; k < LANES; k++) moments.r[k] = __fsqrt_rn(moments.v[k]);
            return;
        }
        if constexpr (OwnLevels::ARE_IN_LANES) {
            u32 lanes[LANES];
            lanes_of_codes(stored.v_codes[j], Lanes::base(j), lanes);
#pragma unroll
            for (u32 k = 0; k < LANES; k++) moments.r[k] = __shfl_sync(0xFFFFFFFFu, decoding.root, lanes[k]);
        } else {
            const Level* const own = OwnLevels(seat.room.tables).of(seat.quad(j));
            for (u32 k = 0; k < LANES; k++) moments.r[k] = own[v_code(stored, j, k)].unit;
        }
#pragma unroll
        for (u32 k = 0; k < LANES; k++) moments.v[k] = __fmul_rn(moments.r[k], moments.r[k]);
    }

    // Stores second moments as f32, and leaves normalised updates over them.
    template <class Seat>
    __device__ static void keep_second(const Step& step, const Seat& seat, const Quad* moments, float (*q)[LANES],
                                       u32* dead, float (*dithers)[LANES]) {
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const Draws random = draws<REPAIRED>(step, seat, j);
            store_plain(seat, j, seat.chunk.arrays[3], moments[j].v);
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

    // Stores second moments by guesses of their codes, and whatever else is to be stored, and leaves normalised updates;
    // returns false if nothing was stored, since a guess may be wrong.
    template <class Seat, class Store>
    __device__ static bool encode_guessed(const Step& step, const Seat& seat, const Quad* moments, float (*q)[LANES],
                                          float (*dithers)[LANES], const Store& store_others) {
        const u32 own_ends = find_own_endpoints(seat, moments);
        const OwnGuesses guesses(own_ends);
        const float unit = unit_of_root(seat, guesses.root);
        u32 words[QUADS], are_wrong = guesses.is_plain() ? 0 : ~0u;
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const Draws random = draws<REPAIRED>(step, seat, j);
            words[j] = guessed_quad(guesses, unit, j, moments[j], random, q[j], are_wrong);
#pragma unroll
            for (u32 k = 0; k < LANES; k++) dithers[j][k] = random.dithers[k];
        }
        if (!all_agree<USTATE_BLOCK>(seat.room, (i32)are_wrong >= 0)) return false;
        store_others();
        for (u32 j = 0; j < QUADS; j++) store_v_codes(seat, j, words[j]);
        const u32 team_first = (u32)seat.at - lane_of_thread() * LANES;
        if (Lanes::is_first() && (USTATE_BLOCK <= TEAM_ELEMENTS || team_first % USTATE_BLOCK == 0)) {
            store_one<4>(seat.chunk.arrays[4], team_first / USTATE_BLOCK + Lanes::block(), own_ends);
        }
        return true;
    }

    // The endpoints of the block whose level a lane holds.
    template <class Seat>
    __device__ static u32 find_own_endpoints(const Seat& seat, const Quad* moments) {
        if constexpr (!REPAIRED) {
            u32 ends[QUADS];
            agreed_endpoints<REPAIRED, USTATE_BLOCK>(seat, moments, ends);
            return Lanes::block() == 0 ? ends[0] : ends[1];
        }
        u32 least[QUADS], most[QUADS];
        extremes_of<BY_ROOT>(seat, moments, least, most);
        fold<Largest, USTATE_BLOCK>(seat.room, most);
        fold<Smallest, USTATE_BLOCK>(seat.room, least);
        return own_endpoints<Lanes>(least, most);
    }

    // The codes of a quad's second moments, and the normalised updates over what they store, if codes are
    // right: the sign bit of `are_wrong` rises where one may not be.
    __device__ static u32 guessed_quad(const OwnGuesses& guesses, float unit, u32 j, const Quad& moments,
                                       const Draws& random, float* q, u32& are_wrong) {
        const auto guess = guesses.of(j);
        u32 word = 0;
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            const u32 lane = guess.lane(moments.v[k]);
            const float value = __shfl_sync(0xFFFFFFFFu, guesses.value, lane);
            const float width = __shfl_sync(0xFFFFFFFFu, guesses.width, lane);
            const float distance = __fsub_rn(moments.v[k], value);
            const float rest = __fmaf_rn(random.uniforms[k], width, -distance);
            are_wrong |= as_bits(distance) | as_bits(__fmaf_rn(width, OwnGuesses::NEAR, rest));
            const u32 own = lane + (as_bits(rest) >> 31);
            q[k] = __fmul_rn(moments.m[k], __shfl_sync(0xFFFFFFFFu, unit, own));
            word += own << (USTATE_V_BITS * k);
        }
        // What is not of codes is known.
        u32 rest = 0;
        for (u32 k = 0; k < LANES; k++) rest += as_bits(guess.counter) << (USTATE_V_BITS * k);
        return word - rest;
    }

    // Stores second moments whatever their levels are, and leaves normalised updates.
    template <class Seat>
    __device__ static void encode_second(const Step& step, const Seat& seat, const Quad* moments, float (*q)[LANES],
                                         u32* dead, float (*dithers)[LANES]) {
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
        return is_kept_as_zero<REPAIRED>(__fmul_rn(root, root)) ? 0.0f : unit_of_root(seat, root);
    }

    // The same of one that is not kept as zero.
    template <class Seat>
    __device__ static float unit_of_root(const Seat& seat, float root) {
        if (!USTATE_FIRST) return 0.0f;
        if constexpr (REPAIRED) {
            return __fmul_rn(quick_inverse(root), units_of(seat.room).inverse_unit);
        }
        const Group& group = seat.group;
        return __fdiv_rn(group.inverse_correction, __fmaf_rn(root, group.rms_scale, group.eps));
    }

    // Finds where what codes stand for begins, so that it has the stored means. Quick steps have it that all elements
    // have a first moment.
    template <class Seat>
    __device__ static void begin_first(const Stored& stored, const Seat& seat, Decoding& decoding) {
        const UStateUnits& units = units_of(seat.room);
        decoding.spread = ustate_spread(stored.m_codes);
        decoding.is_live = ~0u;
        float code_means[QUADS], middles[QUADS];
        if constexpr (Seat::QUICK) {
            average_of_codes(decoding.spread, code_means);
        } else {
            decoding.is_live = average_of_live_codes(decoding, stored, seat, code_means);
        }
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const float mean = __fmul_rn(units.common, bf16_to_f32(stored.means[j]));
            decoding.offsets[j] = ustate_offset(units.scale, code_means[j], mean);
            middles[j] = __fmaf_rn(5.5f, units.scale, decoding.offsets[j]);
        }
        const bool is_near = larger_magnitude(middles[0], middles[1]) <= units.middle_max;
        decoding.is_far = REPAIRED && !__all_sync(0xFFFFFFFFu, is_near);
    }

    // First moments of a quad, given the roots of the second.
    template <class Seat>
    __device__ static void decode_first(const Decoding& decoding, const Seat& seat, u32 j, Quad& moments) {
        const UStateUnits& units = units_of(seat.room);
        const u32 bytes = ustate_bytes(decoding.spread >> (16 * j));
        float values[LANES];
#pragma unroll
        for (u32 k = 0; k < LANES; k++) values[k] = ustate_value(bytes, k, units.scale, decoding.offsets[j]);
        if (decoding.is_far) {
#pragma unroll
            for (u32 k = 0; k < LANES; k++) values[k] = within(values[k], units.bound);
        }
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            float unit = moments.r[k];
            if (!REPAIRED) unit = __fmul_rn(units.correction, __fmaf_rn(unit, units.rms_scale, seat.group.eps));
            moments.m[k] = __fmul_rn(values[k], unit);
            if (!Seat::QUICK && !(decoding.is_live >> (4 * j + k) & 1)) moments.m[k] = 0.0f;
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
    __device__ static u32 average_of_live_codes(const Decoding& decoding, const Stored& stored, const Seat& seat,
                                                float* code_means) {
        u32 sums[QUADS] = {}, is_live = 0;
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            Quad moments;
            decode_second(decoding, stored, seat, j, moments);
#pragma unroll
            for (u32 k = 0; k < LANES; k++) {
                const u32 code = stored.m_codes >> (8 * j + 2 * k) & 3;
                if (!seat.has(j, k) || is_kept_as_zero<REPAIRED>(moments.v[k])) continue;
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
        u32 counts[QUADS], sums[QUADS];
        for (u32 j = 0; j < QUADS; j++) {
            counts[j] = USTATE_MEAN_BLOCK;
            sums[j] = as_bits(__fadd_rn(__fadd_rn(q[j][0], q[j][1]), __fadd_rn(q[j][2], q[j][3])));
        }
        constexpr bool MAY_HAVE_DEAD = !(Seat::QUICK && USTATE_SECOND && OwnLevels::ARE_IN_LANES);
        const bool has_dead = MAY_HAVE_DEAD && __any_sync(0xFFFFFFFFu, (dead[0] | dead[1]) != 0);
        if (has_dead) {
            u32 own = 0;
            for (u32 j = 0; j < QUADS; j++) {
                counts[j] = LANES - __popc(dead[j]);
                for (u32 k = 0; k < LANES; k++) own += seat.has(j, k) ? dead[j] >> k & 1 : 0;
            }
            own = __reduce_add_sync(0xFFFFFFFFu, own);
            if (lane_of_thread() == 0) atomicAdd(&seat.room.dead, own);
        }
        u32 means[QUADS];
        store_means(seat, sums, counts, has_dead, means);
        const float inverse_quarter = units_of(seat.room).inverse_quarter;
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const float mean = bf16_to_f32(means[j]);
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
    }

    // Stores the mean of each quad's block, given what a thread has of it, and leaves it.
    template <class Seat>
    __device__ static void store_means(const Seat& seat, u32* sums, u32* counts, bool has_dead, u32* means) {
        constexpr bool IS_HALVED = USTATE_MEAN_BLOCK <= ROW_ELEMENTS;
        constexpr u32 RUN = IS_HALVED ? USTATE_MEAN_BLOCK / LANES : WARP_LANES;
        // The quad whose block this lane finds the mean of, with others.
        const u32 quad = IS_HALVED && (lane_of_thread() & (RUN / 2)) != 0 ? 1 : 0;
        u32 sum, count = USTATE_MEAN_BLOCK;
        if constexpr (IS_HALVED) {
            sum = folded_by_halves<AddFloats, RUN>(sums);
            if (has_dead) count = folded_by_halves<AddWords, RUN>(counts);
        } else {
            fold<AddFloats, USTATE_MEAN_BLOCK>(seat.room, sums);
            if (has_dead) fold<AddWords, USTATE_MEAN_BLOCK>(seat.room, counts);
            sum = sums[0];
            count = counts[0];
        }
        float average = __fmul_rn(as_float(sum), 1.0f / USTATE_MEAN_BLOCK);
        if (has_dead) average = averaged(as_float(sum), count);
        const u32 own = bf16_nearest(average);
        for (u32 j = 0; j < QUADS; j++) {
            means[j] = IS_HALVED ? __shfl_sync(0xFFFFFFFFu, own, j * RUN / 2, RUN) : own;
        }
        const u32 number = ((u32)seat.at + quad * ROW_ELEMENTS) / USTATE_MEAN_BLOCK;
        if (lane_of_thread() % (IS_HALVED ? RUN / 2 : RUN) != 0) return;
        if (!seat.template has_block<USTATE_MEAN_BLOCK>(number)) return;
        store_one<2>(seat.chunk.arrays[1], number, own);
    }

    // Moves normalised updates that no exact moments have to the bound. Most often there are none.
    template <class Seat>
    __device__ static void keep_within(const Seat& seat, float (*q)[LANES]) {
        float largest[QUADS];
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            largest[j] = fmaxf(fmaxf(fabsf(q[j][0]), fabsf(q[j][1])), fmaxf(fabsf(q[j][2]), fabsf(q[j][3])));
        }
        if (!__any_sync(0xFFFFFFFFu, fmaxf(largest[0], largest[1]) > seat.group.normalised_max)) return;
        for (u32 j = 0; j < QUADS; j++) {
            for (u32 k = 0; k < LANES; k++) q[j][k] = within(q[j][k], seat.group.normalised_max);
        }
    }
};
