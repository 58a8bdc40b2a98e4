// Blocks of n4l4: 4-bit codes of the normalised first moment beside 4-bit codes of the second; twin of
// optimizer/src/cpu/n4l4.rs.
#pragma once

#include "blocks/seat.cuh"
#include "codec/n4l4.cuh"

struct N4l4State {
    static constexpr bool DECAYS_LAST = false;
    static constexpr bool HAS_BIAS = false;
    // What extremes are found of.
    static constexpr bool BY_ROOT = true;
    // So small a root counts as zero.
    static constexpr float TOO_SMALL = ROOT_ZERO_MAX;
    // Elements of the blocks that threads agree on.
    static constexpr u32 BLOCK = N4L4_V_BLOCK;
    // Inverse roots that a team needs: of all codes of its blocks.
    static constexpr u32 CODES = V_CODE_MAX + 1;
    static constexpr u32 TEAM_BLOCKS = TEAM_ELEMENTS / N4L4_V_BLOCK;
    static constexpr u32 WORDS = THREADS / WARP_LANES * TEAM_BLOCKS * CODES;
    static_assert(!(KINDS & N4L4_KINDS) || WORDS <= SHARED_TABLE_WORDS, "room");

    // Arrays: codes, units of m, endpoints of r.
    __device__ static void place(Chunk& chunk) {
        const u64 index = (u64)chunk.index;
        const u64 scales = chunk.state + padded(chunk.length);
        chunk.arrays[0] = chunk.state + index;
        chunk.arrays[1] = scales + index / N4L4_M_BLOCK * 2;
        chunk.arrays[2] = scales + padded(blocks_of(chunk.length, N4L4_M_BLOCK) * 2)
            + index / N4L4_V_BLOCK * 4;
    }

    // What is stored of a thread's quads.
    struct Stored {
        u32 words[QUADS];
        u32 units[QUADS];
        u32 endpoints[QUADS];

        template <class Seat>
        __device__ explicit Stored(const Seat& seat) {
#pragma unroll
            for (u32 j = 0; j < QUADS; j++) {
                words[j] = units[j] = endpoints[j] = 0;
                if (!seat.has(j, 0)) continue;
                const u64 m_block = seat.template block<N4L4_M_BLOCK>(j);
                const u64 v_block = seat.template block<N4L4_V_BLOCK>(j);
                words[j] = load_one<4>(seat.chunk.arrays[0] + seat.quad(j), 0);
                units[j] = load_one<2>(seat.chunk.arrays[1] + m_block * 2, 0);
                endpoints[j] = load_one<4>(seat.chunk.arrays[2] + v_block * 4, 0);
            }
        }
    };

    __device__ N4l4State(const Step&, const Chunk&, const Group&, SharedRoom&) {}

    // Whether no code of a thread's quads stands for a root of zero, which quick steps do not ask of each.
    struct Decoding {
        bool is_plain;
    };

    template <class Seat>
    __device__ static Decoding begin_decode(const Stored& stored, const Seat&) {
        const auto is_plain = [](u32 endpoints) { return (endpoints & 0xFFFF) <= endpoints >> 16; };
        return {is_plain(stored.endpoints[0]) && is_plain(stored.endpoints[1])};
    }

    template <class Seat>
    __device__ static void decode(Decoding, const Stored& stored, const Seat&, u32 j, Quad& moments) {
        const RootGrid<!Seat::QUICK> grid(stored.endpoints[j]);
        const float unit = bf16_to_f32(stored.units[j]);
        const u32 m_codes = stored.words[j] & 0x0F0F0F0Fu;
        const u32 v_codes = stored.words[j] >> 4 & 0x0F0F0F0Fu;
#pragma unroll
        for (u32 k = 0; k < LANES; k++) {
            const float r = grid.root(__byte_perm(v_codes, 0, 0x4440 + k));
            moments.m[k] = __fmul_rn(__fmul_rn(n4l4_multiple(m_codes, k), unit), r);
            moments.v[k] = __fmul_rn(r, r);
        }
    }

    // Stores moments, and whatever else is to be stored with them.
    template <class Seat, class Store>
    __device__ bool encode(const Step& step, const Seat& seat, const Quad* moments, const Store& store_others) const {
        store_others();
        u32 least[QUADS], most[QUADS];
        extremes_of<BY_ROOT>(seat, moments, least, most);
        fold<Largest, N4L4_V_BLOCK>(seat.room, most);
        if constexpr (Seat::QUICK) {
            fold<Smallest, N4L4_V_BLOCK>(seat.room, least);
            u32 ends[QUADS];
            for (u32 j = 0; j < QUADS; j++) ends[j] = n4l4_endpoints(least[j], most[j], false);
            encode_rows<false>(step, seat, moments, ends);
        } else {
            agree_beside_zeros(seat, moments, most, least);
            encode_rows<true>(step, seat, moments, least);
        }
        return true;
    }

    __device__ void finish(const Step&, const Chunk&, const Group&, SharedRoom&) const {}

  private:
    // The endpoints of the block of each quad, from its largest root, where roots may count as zero.
    template <class Seat>
    __device__ static void agree_beside_zeros(const Seat& seat, const Quad* moments, const u32* most,
                                              u32* ends) {
        u32 least[QUADS], zeros[QUADS];
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            least[j] = ~0u;
            zeros[j] = 0;
#pragma unroll
            for (u32 k = 0; k < LANES; k++) {
                if (!seat.has(j, k)) continue;
                const u32 bits = as_bits(moments[j].r[k]);
                const bool is_zero = bits <= as_bits(ROOT_ZERO_MAX);
                if (is_zero) zeros[j] = 1;
                least[j] = min(least[j], is_zero ? ~0u : bits);
            }
        }
        fold<Smallest, N4L4_V_BLOCK>(seat.room, least);
        fold<Largest, N4L4_V_BLOCK>(seat.room, zeros);
        for (u32 j = 0; j < QUADS; j++) ends[j] = n4l4_endpoints(least[j], most[j], zeros[j] != 0);
    }

    template <bool HAS_ZERO, class Seat>
    __device__ void encode_rows(const Step& step, const Seat& seat, const Quad* moments,
                                const u32* ends) const {
        // The inverse roots of this team's blocks, and those of the block of each quad.
        char* const team = reinterpret_cast<char*>(seat.room.tables)
            + team_of_thread() * (TEAM_BLOCKS * CODES * 4);
        char* own[QUADS];
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            own[j] = team + (u32)seat.quad(j) % TEAM_ELEMENTS / N4L4_V_BLOCK * (CODES * 4);
        }
        fill<HAS_ZERO>(ends, reinterpret_cast<float*>(own[0]), reinterpret_cast<float*>(own[1]));
        u32 v_codes[QUADS][LANES], absmaxes[QUADS];
        float q[QUADS][LANES], dithers[QUADS][LANES];
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const RootGrid<HAS_ZERO> grid(ends[j]);
            const float inverse_step = grid.inverse_step();
            const Draws random = draws<true>(step, seat, j);
            float absmax = 0.0f;
#pragma unroll
            for (u32 k = 0; k < LANES; k++) {
                dithers[j][k] = N4L4_NEAREST ? 0.5f : random.dithers[k];
                v_codes[j][k] = grid.code(moments[j].r[k], random.uniforms[k], inverse_step);
                const float inverse = *reinterpret_cast<const float*>(own[j] + v_codes[j][k] * 4);
                q[j][k] = __fmul_rn(moments[j].m[k], inverse);
                absmax = fmaxf(absmax, fabsf(q[j][k]));
            }
            absmaxes[j] = as_bits(absmax);
        }
        fold<Largest, N4L4_M_BLOCK>(seat.room, absmaxes);
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const u32 unit = n4l4_stored_unit(as_float(absmaxes[j]), seat.group.ratio_max);
            const float inverse_unit = n4l4_inverse_unit(unit);
            u32 codes[LANES];
#pragma unroll
            for (u32 k = 0; k < LANES; k++) {
                codes[k] = n4l4_code(q[j][k], inverse_unit, dithers[j][k]) + v_codes[j][k] * 16;
                if (!seat.has(j, k)) codes[k] = 0;
            }
            if (!seat.has(j, 0)) continue;
            const u32 word = __byte_perm(__byte_perm(codes[0], codes[1], 0x0040),
                                         __byte_perm(codes[2], codes[3], 0x0040), 0x5410);
            store_one<4>(seat.chunk.arrays[0] + seat.quad(j), 0, word);
            if (seat.quad(j) % N4L4_M_BLOCK == 0) {
                store_one<2>(seat.chunk.arrays[1] + seat.template block<N4L4_M_BLOCK>(j) * 2, 0, unit);
            }
            if (seat.quad(j) % N4L4_V_BLOCK == 0) {
                store_one<4>(seat.chunk.arrays[2] + seat.template block<N4L4_V_BLOCK>(j) * 4, 0, ends[j]);
            }
        }
    }

    // The lanes of a run, or of the two rows of a block, share the work; a run of few lanes takes turns.
    template <bool HAS_ZERO>
    __device__ static void fill(const u32* ends, float* first, float* second) {
        constexpr u32 RUN = N4L4_V_BLOCK < ROW_ELEMENTS ? N4L4_V_BLOCK / LANES : WARP_LANES;
        constexpr bool IS_ONE = N4L4_V_BLOCK > ROW_ELEMENTS;
        typedef RootGrid<HAS_ZERO> Grid;
        __syncwarp();
        if constexpr (RUN == WARP_LANES) {
            // Half of the lanes for each row.
            const u32 half = lane_of_thread() / CODES, code = lane_of_thread() % CODES;
            const float root = Grid(half == 0 ? ends[0] : ends[1]).root(code);
            if (!IS_ONE || half == 0) (half == 0 ? first : second)[code] = inverse(root);
        } else {
            for (u32 code = lane_of_thread() % RUN; code < CODES; code += RUN) {
                first[code] = inverse(Grid(ends[0]).root(code));
                second[code] = inverse(Grid(ends[1]).root(code));
            }
        }
        __syncwarp();
    }

    __device__ static float inverse(float root) { return root == 0.0f ? 0.0f : quick_inverse(root); }
};
