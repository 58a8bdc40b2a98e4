// Causal attention in tf32, backward, where four warps make products as one. Formula and pairs: attention.cuh; who does
// what: attention_ring.cuh; what is turned: attention_wide.cuh. Launched by src/attention.rs.
//
// A task is 64 keys and values, which visit the queries that see them (d_k and d_v), or 64 queries, which visit the
// keys that they see (d_q). Either way scores have a row for every own row and a column for every visited one, and
// turn into probabilities and their gradients in registers, from where they enter the products with visited rows. So
// probabilities are computed twice, and nothing is added up across blocks. Shares put together what they found: each
// finishes a part of it.
//
// Grid: at most two blocks for every tile of rows of every head. Overwrites all of d_qkv. Shared memory: SHARED_BYTES
// at launch: own rows of two arrays, the ring, turned tiles of each group, pairs of visited queries, barriers.
//
// Defines: those of attention_ring.cuh.

#define FOLDS_SUM true
#define SENDING_GROUPS (UNITS * SHARES)
#include "attention_planes.cuh"
#include "attention_visits.cuh"
#include "attention_wide.cuh"

static_assert(SHARES == 2, "two of them change halves");
static_assert(CLUSTER == 1, "blocks are by themselves");
static_assert(SHARED_BYTES >= 2 * TILE_BYTES + STAGES * (2 * TILE_BYTES + PAIRS_BYTES) + SHARES * 2 * TILE_BYTES +
                                  BARRIER_BYTES,
              "room for everything");

__device__ __forceinline__ u32 count_of(const Attention& call, const Visits& visits) {
    return visits.owns_keys ? call.tiles - visits.tile : visits.tile + 1;
}

struct Place {
    Ring ring;
    Shared turned;
    Shared pairs;
    float* turned_floats;
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
        const auto two_begin = [&](Shared first, Shared second, bool is_of_keys, u32 row, Shared there) {
            tile_begin(first, all.qkv, channel + (is_of_keys ? apart : 0), row, window, there);
            if (is_of_keys) {
                tile_begin(second, all.qkv, channel + 2 * apart, row, window, there);
            } else {
                tile_begin(second, all.d_out, channel, row, window, there);
            }
        };
        if (turn > 0) barrier_wait(ring.own_done(), (turn - 1) & 1);
        barrier_expect(ring.own_there(), 2 * TILE_BYTES);
        two_begin(ring.own_tile(0, 0), ring.own_tile(1, 0), owns_keys, visits.tile * TILE, ring.own_there());
#pragma unroll 1
        for (u32 j = 0; j < visits.count; j++, visit++) {
            const Use use = use_of(visit);
            const u32 row = (visits.first + j) * TILE;
            if (visit >= STAGES) barrier_wait(ring.done(use.stage), use.parity ^ 1);
            const Shared there = ring.there(use.stage, 0);
            barrier_expect(there, 2 * TILE_BYTES + (owns_keys ? PAIRS_BYTES : 0));
            two_begin(ring.tile(use.stage, 0), ring.tile(use.stage, 1), !owns_keys, row, there);
            if (owns_keys) bytes_begin(place.pairs + use.stage * PAIRS_BYTES, pairs + row * 2, PAIRS_BYTES, there);
        }
    }
}

// Where a share leaves what the other one finishes: its own turned tiles were there.
__device__ __forceinline__ float* left_of(u32 share, const Place& place) {
    return place.turned_floats + share * (2 * TILE_BYTES / 4) + threadIdx.x % 128;
}

template <bool OWNS_KEYS>
__device__ __forceinline__ void compute(const Place& place, const RingAttention& all, const Visits& visits, u32 turn,
                                        u32 before, const Member& member) {
    const Ring& ring = place.ring;
    const Attention& call = all.call;
    const u32 own_first = visits.tile * TILE;
    Row rows[2] = {};
    if constexpr (!OWNS_KEYS) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const float* pair = pairs_of(call, visits.task) + (own_first + member.row + 8 * half) * 2;
            rows[half] = {pair[0], pair[1]};
        }
    }
    barrier_wait(ring.own_there(), turn & 1);
    Left first, second;
    keep_wide(first, ring.own_tile(0, 0), member);
    keep_wide(second, ring.own_tile(1, 0), member);

    Tile d_first, d_second;
    set_zero(d_first);
    if (OWNS_KEYS) set_zero(d_second);
    const Shared turned = place.turned + member.share * 2 * TILE_BYTES;
    products_wait(member, true);
#pragma unroll 1
    for (u32 j = member.share; j < visits.count; j += SHARES) {
        const Use use = use_of(before + j);
        const Shared tiles[2] = {ring.tile(use.stage, 0), ring.tile(use.stage, 1)};
        Tile scores, d_scores;
        barrier_wait(ring.there(use.stage, 0), use.parity);
        group_fence();
        begin_wide<false>(scores, first, tiles[0]);
        begin_wide<false>(d_scores, second, tiles[1]);
        group_commit();
        products_pass(member, false);
        turn_tile(turned, tiles[0], member);
        if (OWNS_KEYS) turn_tile(turned + TILE_BYTES, tiles[1], member);
        group_publish();
        group_barrier(member);
        finish(scores);
        pin(d_scores);
        // What is kept has been read now.
        if (j < SHARES) arrive(ring.own_done(), member);
        const bool is_diagonal = visits.first + j == visits.tile;
        gradients<OWNS_KEYS>(scores, d_scores, rows, place.pairs + use.stage * PAIRS_BYTES, call.scale_log2,
                             is_diagonal, member);
        arrive(ring.done(use.stage), member);
        Left p, ds;
        if (OWNS_KEYS) pack_wide(p, scores);
        pack_wide(ds, d_scores);
        products_wait(member, false);
        group_fence();
        if (OWNS_KEYS) begin_wide<true>(d_second, p, turned + TILE_BYTES);
        begin_wide<true>(d_first, ds, turned);
        group_commit();
        finish(d_first);
        if (OWNS_KEYS) pin(d_second);
        // No thread writes to turned tiles before all are done with them.
        group_barrier(member);
    }
    products_end(member, visits.count);
    if (member.share >= visits.count) arrive(ring.own_done(), member);
    hold(first, call.time == 0, turned);
    hold(second, call.time == 0, turned);

    const u32 stride_bytes = 3 * channels(call) * ELEMENT_BYTES;
    const u32 limit = own_first < call.time ? call.time - own_first : 0;
    const auto to = [&](u32 third) {
        return head_of_qkv(call, call.d_qkv, visits.task, third) + (u64)own_first * stride_bytes;
    };
    const float scales[2] = {call.scale, call.scale}, ones[2] = {1.0f, 1.0f};
    // Each share finishes one array, or a half of one. All threads come to each barrier at one place of the program.
    float *const own = left_of(member.share, place), *const theirs = left_of(member.share ^ 1, place);
    const bool is_first = member.share == 0;
    if constexpr (OWNS_KEYS) {
        if (is_first) {
            leave<0, 8>(own, d_second);
        } else {
            leave<0, 8>(own, d_first);
        }
        named_barrier(1, COMPUTING_THREADS);
        if (is_first) {
            gather<0, 8>(d_first, theirs);
        } else {
            gather<0, 8>(d_second, theirs);
        }
        named_barrier(1, COMPUTING_THREADS);
        if (is_first) {
            store_wide<0, 8>(to(1), stride_bytes, limit, d_first, scales, member);
        } else {
            store_wide<0, 8>(to(2), stride_bytes, limit, d_second, ones, member);
        }
    } else {
        if (is_first) {
            leave<4, 4>(own, d_first);
        } else {
            leave<0, 4>(own, d_first);
        }
        named_barrier(1, COMPUTING_THREADS);
        if (is_first) {
            gather<0, 4>(d_first, theirs);
        } else {
            gather<4, 4>(d_first, theirs);
        }
        named_barrier(1, COMPUTING_THREADS);
        if (is_first) {
            store_wide<0, 4>(to(0), stride_bytes, limit, d_first, scales, member);
        } else {
            store_wide<4, 4>(to(0), stride_bytes, limit, d_first, scales, member);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_MIN)
    attention_backward(const __grid_constant__ RingAttention all) {
    DYNAMIC_SHARED(shared);
    Place place;
    // From a multiple of 1024 on, since there is no other shared memory.
    place.ring.own = shared_address(shared);
    place.ring.stages = place.ring.own + 2 * TILE_BYTES;
    place.turned = place.ring.stages + STAGES * 2 * TILE_BYTES;
    place.turned_floats = reinterpret_cast<float*>(shared + (2 + STAGES * 2) * TILE_BYTES);
    place.pairs = place.turned + SHARES * 2 * TILE_BYTES;
    place.ring.barriers = place.pairs + STAGES * PAIRS_BYTES;
    begin(place.ring);
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
