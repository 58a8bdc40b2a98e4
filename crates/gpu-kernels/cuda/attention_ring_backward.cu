// Causal attention, backward, where four warps make products as one. Formula and pairs: attention.cuh; who does
// what: attention_ring.cuh. Launched by src/attention.rs.
//
// A task is ROWS keys and values, which visit the queries that see them (d_k and d_v), or ROWS queries, which visit
// the keys that they see (d_q). Either way scores have a row for every own row and a column for every visited one,
// and turn into probabilities and their gradients in registers, from where they enter the products with visited
// rows. So probabilities are computed twice, and nothing is added up across blocks. Shares put together what they
// found: each finishes a part of it.
//
// Grid: at most two blocks for every tile of rows of every head. Overwrites all of d_qkv. Shared memory: SHARED_BYTES
// at launch, from a multiple of 1024 on: own rows of two arrays, the ring, pairs of visited queries, what shares
// leave, barriers.
//
// Defines: those of attention_ring.cuh.

#define FOLDS_SUM true
// All: each finishes a part of the sums.
#define SENDING_GROUPS (UNITS * SHARES)
#include "attention_planes.cuh"
#include "attention_ring.cuh"
#include "attention_visits.cuh"

// A share leaves one tile of sums, or a half of one, for the other.
static constexpr u32 LEFT_BYTES = (SHARES - 1) * 2 * UNITS * 128 * 32 * 4;
static_assert(SHARES <= 2, "two of them change halves");
static_assert(CLUSTER == 1, "what blocks would tell each other costs more than they gain");
static_assert(SHARED_BYTES >= 1024 + 2 * UNITS * TILE_BYTES + STAGES * (2 * TILE_BYTES + PAIRS_BYTES) + LEFT_BYTES +
                                  BARRIER_BYTES,
              "room for everything");

__device__ __forceinline__ u32 count_of(const Attention& call, const Visits& visits) {
    const u32 tiles = (call.time + TILE - 1) / TILE;
    return visits.owns_keys ? tiles - visits.first : min((visits.tile + 1) * UNITS, tiles);
}

struct Place {
    Ring ring;
    Shared pairs;
    Shared left;
    float* left_floats;
};

// All that a block reads, by one thread.
__device__ __forceinline__ void fetch(const Place& place, const RingAttention& all) {
    const Ring& ring = place.ring;
    const Attention& call = all.call;
    const u32 apart = call.heads * HEAD_SIZE;
    u32 number, visit = 0;
#pragma unroll 1
    for (u32 turn = 0; begin_turn(number, ring.turns(), call, turn); turn++) {
        const Visits visits = visits_of(call, number);
        const bool owns_keys = visits.owns_keys;
        const u32 channel = visits.task.head * HEAD_SIZE, window = visits.task.window;
        const float* pairs = pairs_of(call, visits.task);
        // A tile of keys and values, or of queries and their gradients of outputs.
        const auto tile_begin = [&](Shared first, Shared second, bool is_of_keys, u32 row, Shared there) {
            piece_begin(first, all.qkv, channel + (is_of_keys ? apart : 0), row, window, there);
            if (is_of_keys) {
                piece_begin(second, all.qkv, channel + 2 * apart, row, window, there);
            } else {
                piece_begin(second, all.d_out, channel, row, window, there);
            }
        };
        if (turn > 0) barrier_wait(ring.own_done(), (turn - 1) & 1);
        barrier_expect(ring.own_there(), 2 * UNITS * TILE_BYTES);
        for (u32 unit = 0; unit < UNITS; unit++) {
            tile_begin(ring.own_tile(0, unit), ring.own_tile(1, unit), owns_keys, visits.tile * ROWS + unit * TILE,
                       ring.own_there());
        }
#pragma unroll 1
        for (u32 j = 0; j < visits.count; j++, visit++) {
            const Use use = use_of(visit);
            const u32 row = (visits.first + j) * TILE;
            if (visit >= STAGES) barrier_wait(ring.done(use.stage), use.parity ^ 1);
            const Shared there = ring.there(use.stage, 0);
            barrier_expect(there, 2 * TILE_BYTES + (owns_keys ? PAIRS_BYTES : 0));
            tile_begin(ring.tile(use.stage, 0), ring.tile(use.stage, 1), !owns_keys, row, there);
            if (owns_keys) bytes_begin(place.pairs + use.stage * PAIRS_BYTES, pairs + row * 2, PAIRS_BYTES, there);
        }
    }
}

// Where a share leaves what the other one finishes.
__device__ __forceinline__ float* left_of(u32 share, const Place& place, const Member& member) {
    return place.left_floats + (share * UNITS + member.unit) * 128 * 32 + threadIdx.x % 128;
}

template <bool OWNS_KEYS>
__device__ __forceinline__ void compute(const Place& place, const RingAttention& all, const Visits& visits, u32 turn,
                                        u32 before, const Member& member) {
    const Ring& ring = place.ring;
    const Attention& call = all.call;
    const u32 own_tile = visits.tile * UNITS + member.unit, own_first = own_tile * TILE;
    Row rows[2] = {};
    if constexpr (!OWNS_KEYS) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const float* pair = pairs_of(call, visits.task) + (own_first + member.row + 8 * half) * 2;
            rows[half] = {pair[0], pair[1]};
        }
    }
    barrier_wait(ring.own_there(), turn & 1);
    const Own<KEPT >= 1> first(ring.own_tile(0, member.unit), member);
    const Own<KEPT == 2> second(ring.own_tile(1, member.unit), member);

    Tile d_first, d_second;
    set_zero(d_first);
    if (OWNS_KEYS) set_zero(d_second);
    // Tiles from `begin` to `end` of those that are visited are seen, that which is the own one in part.
    const u32 diagonal = own_tile - visits.first;
    const u32 begin = OWNS_KEYS ? diagonal : 0, end = OWNS_KEYS ? visits.count : min(diagonal + 1, visits.count);
    const auto skip = [&](u32 j) {
        const Use use = use_of(before + j);
        barrier_wait(ring.there(use.stage, 0), use.parity);
        arrive(ring.done(use.stage), member);
    };
    u32 j = member.share;
    for (; j < min(begin, visits.count); j += SHARES) skip(j);
    const bool sees_none = j >= end;
    if (!sees_none) {
        Tile scores, d_scores;
        const auto begin_scores = [&] {
            const Use use = use_of(before + j);
            barrier_wait(ring.there(use.stage, 0), use.parity);
            group_fence();
            begin_rows(scores, first, ring.tile(use.stage, 0));
            begin_rows(d_scores, second, ring.tile(use.stage, 1));
            group_commit();
        };
        Left p, ds;
        const auto turn_scores = [&] {
            const Shared pairs = place.pairs + use_of(before + j).stage * PAIRS_BYTES;
            const bool is_diagonal = j == diagonal;
            gradients<OWNS_KEYS>(scores, d_scores, rows, pairs, call.scale_log2, is_diagonal, member);
        };
        const auto pack_both = [&] {
            if (OWNS_KEYS) pack(p, scores);
            pack(ds, d_scores);
        };
        const auto begin_sums = [&](const Use& use) {
            pin(d_first);
            if (OWNS_KEYS) pin(d_second);
            group_fence();
            if (OWNS_KEYS) begin_columns(d_second, p, ring.tile(use.stage, 1));
            begin_columns(d_first, ds, ring.tile(use.stage, 0));
            group_commit();
        };
        const auto finish_sums = [&](const Use& use) {
            finish(d_first);
            if (OWNS_KEYS) pin(d_second);
            arrive(ring.done(use.stage), member);
        };
        begin_scores();
        finish(scores);
        pin(d_scores);
        // What is kept has been read now.
        if (KEPT == 2) arrive(ring.own_done(), member);
        turn_scores();
        pack_both();
        // Scores of the next tile are made first, so that what becomes of them has this one's sums beside it.
#pragma unroll 1
        for (; j + SHARES < end;) {
            const Use use = use_of(before + j);
            j += SHARES;
            begin_scores();
            begin_sums(use);
            group_wait_but<1>();
            pin(scores);
            pin(d_scores);
            turn_scores();
            finish_sums(use);
            pack_both();
        }
        const Use use = use_of(before + j);
        begin_sums(use);
        finish_sums(use);
        j += SHARES;
    }
    if (KEPT < 2 || sees_none) arrive(ring.own_done(), member);
    for (; j < visits.count; j += SHARES) skip(j);

    const u32 stride_bytes = 3 * channels(call) * ELEMENT_BYTES;
    const u32 limit = own_first < call.time ? call.time - own_first : 0;
    const auto to = [&](u32 third) {
        return head_of_qkv(call, call.d_qkv, visits.task, third) + (u64)own_first * stride_bytes;
    };
    const float scales[2] = {call.scale, call.scale}, ones[2] = {1.0f, 1.0f};
    const bool is_first = member.share == 0;
    if constexpr (SHARES == 2) {
        // Each share finishes one array, or a half of one. All threads come to each barrier at one place of the program.
        float* const own = left_of(member.share, place, member);
        const float* const theirs = left_of(member.share ^ 1, place, member);
        named_barrier(1, COMPUTING_THREADS);
        if constexpr (OWNS_KEYS) {
            if (is_first) {
                leave<0, 8>(own, d_second);
            } else {
                leave<0, 8>(own, d_first);
            }
        } else {
            if (is_first) {
                leave<4, 4>(own, d_first);
            } else {
                leave<0, 4>(own, d_first);
            }
        }
        named_barrier(1, COMPUTING_THREADS);
        if constexpr (OWNS_KEYS) {
            if (is_first) {
                gather<0, 8>(d_first, theirs);
            } else {
                gather<0, 8>(d_second, theirs);
            }
        } else {
            if (is_first) {
                gather<0, 4>(d_first, theirs);
            } else {
                gather<4, 4>(d_first, theirs);
            }
        }
    }
    if constexpr (OWNS_KEYS) {
        if (SHARES == 1 || is_first) store_tile<0, 8>(to(1), stride_bytes, limit, d_first, scales, member);
        if (SHARES == 1 || !is_first) store_tile<0, 8>(to(2), stride_bytes, limit, d_second, ones, member);
    } else if constexpr (SHARES == 1) {
        store_tile<0, 8>(to(0), stride_bytes, limit, d_first, scales, member);
    } else if (is_first) {
        store_tile<0, 4>(to(0), stride_bytes, limit, d_first, scales, member);
    } else {
        store_tile<4, 4>(to(0), stride_bytes, limit, d_first, scales, member);
    }
}

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, BLOCKS_MIN)
    attention_backward(const __grid_constant__ RingAttention all) {
    DYNAMIC_SHARED(shared);
    Place place;
    place.ring.own = (shared_address(shared) + 1023) & ~(Shared)1023;
    place.ring.stages = place.ring.own + 2 * UNITS * TILE_BYTES;
    place.pairs = place.ring.stages + STAGES * 2 * TILE_BYTES;
    place.left = place.pairs + STAGES * PAIRS_BYTES;
    place.left_floats = reinterpret_cast<float*>(shared + (place.left - shared_address(shared)));
    place.ring.barriers = place.left + LEFT_BYTES;
    begin(place.ring);
    launch_wait();
    launch_next();
    const u32 warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    if (warp >= COMPUTING_WARPS) {
        registers_give();
        if (threadIdx.x == COMPUTING_THREADS) fetch(place, all);
    } else {
        registers_take<REGISTERS>();
        const Member member = member_of(warp);
        compute_all(place, place.ring.turns(), all, member);
    }
}
