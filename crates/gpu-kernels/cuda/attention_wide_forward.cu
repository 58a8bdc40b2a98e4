// Causal attention in tf32, forward, where four warps make products as one. Formula and statistics: attention.cuh; who
// does what: attention_ring.cuh; what is turned: attention_wide.cuh. Launched by src/attention.rs.
//
// A task is 64 queries, which visit keys and values. Each group keeps its own largest scores, sums of exponentials and
// weighted values; the first share puts them together.
//
// Grid: at most a block for every tile of queries of every head. Overwrites all of out and statistics. Shared
// memory: SHARED_BYTES at launch: queries, the ring, turned values of each group, where shares leave what they found in
// the end, what blocks of a cluster send each other, barriers.
//
// Defines: those of attention_ring.cuh.

// The first share.
#define SENDING_GROUPS UNITS
#include "attention_found.cuh"
#include "attention_wide.cuh"

static_assert((SHARES - 1) * 128 * NUMBERS * 4 <= SHARES * TILE_BYTES, "room for what shares leave");
static_assert(SHARED_BYTES >= TILE_BYTES + STAGES * 2 * TILE_BYTES + SHARES * TILE_BYTES + SENT_BYTES + BARRIER_BYTES,
              "room for everything");

struct Place {
    Ring ring;
    Shared turned;
    float* turned_floats;
    Shared sent;
};

// All that a block reads, by one thread.
__device__ __forceinline__ void fetch(const Ring& ring, const RingAttention& all) {
    const Attention& call = all.call;
    const u32 apart = call.heads * HEAD_SIZE;
    u32 number, visit = 0;
#pragma unroll 1
    for (u32 turn = 0; begin_turn(number, ring.turns(), call, turn); turn++) {
        const Visits visits = visits_of(call, number);
        const u32 channel = visits.task.head * HEAD_SIZE, window = visits.task.window;
        if (turn > 0) barrier_wait(ring.own_done(), (turn - 1) & 1);
        barrier_expect(ring.own_there(), TILE_BYTES);
        tile_begin(ring.own_tile(0, 0), all.qkv, channel, visits.first, window, ring.own_there());
#pragma unroll 1
        for (u32 j = rank_in_cluster(); j < visits.count; j += CLUSTER, visit++) {
            const Use use = use_of(visit);
            if (visit >= STAGES) barrier_wait(ring.done(use.stage), use.parity ^ 1);
#pragma unroll
            for (u32 which = 0; which < 2; which++) {
                const Shared there = ring.there(use.stage, which);
                barrier_expect(there, TILE_BYTES);
                tile_begin(ring.tile(use.stage, which), all.qkv, channel + (which + 1) * apart, j * TILE, window, there);
            }
        }
    }
}

// What a share finds of `count` tiles that its block visits, after `before` of earlier tasks.
__device__ __forceinline__ void visit_all(Found& found, const Place& place, const Left& queries, u32 before, u32 count,
                                          u32 diagonal, float scale_log2, const Member& member) {
    const Ring& ring = place.ring;
    const Shared turned = place.turned + member.share * TILE_BYTES;
    const u32 rank = rank_in_cluster();
    products_wait(member, true);
#pragma unroll 1
    for (u32 j = member.share; j < count; j += SHARES) {
        const Use use = use_of(before + j);
        Tile scores;
        barrier_wait(ring.there(use.stage, 0), use.parity);
        group_fence();
        begin_wide<false>(scores, queries, ring.tile(use.stage, 0));
        group_commit();
        products_pass(member, false);
        barrier_wait(ring.there(use.stage, 1), use.parity);
        turn_tile(turned, ring.tile(use.stage, 1), member);
        group_publish();
        group_barrier(member);
        finish(scores);
        arrive(ring.done(use.stage), member);
        // What is kept has been read now.
        if (j < SHARES) arrive(ring.own_done(), member);
        float factors[2];
        const bool is_larger =
            exponentials(factors, found, scores, scale_log2, CLUSTER * j + rank == diagonal, member);
        // Seldom after the first few tiles.
        if (__any_sync(0xFFFFFFFFu, is_larger)) {
#pragma unroll
            for (u32 i = 0; i < 32; i++) found.sums[i / 4][i % 4] *= factors[i % 4 / 2];
        }
        Left probabilities;
        pack_wide(probabilities, scores);
        products_wait(member, false);
        pin(found.sums);
        group_fence();
        begin_wide<true>(found.sums, probabilities, turned);
        group_commit();
        finish(found.sums);
        // No thread writes to the turned tile before all are done with it.
        group_barrier(member);
    }
    products_end(member, count);
    if (member.share >= count) arrive(ring.own_done(), member);
}

__device__ __forceinline__ void compute(const Place& place, const RingAttention& all, const Member& member) {
    const Ring& ring = place.ring;
    const Attention& call = all.call;
    const u32 rank = rank_in_cluster();
    u32 number, before = 0;
#if CLUSTER > 1
    cluster_wait();
#endif
#pragma unroll 1
    for (u32 turn = 0; follow_turn(number, ring.turns(), call, turn); turn++) {
        const Visits visits = visits_of(call, number);
        Found found;
        set_zero(found.sums);
        found.shifts[0] = found.shifts[1] = -infinity();
        found.totals[0] = found.totals[1] = 0.0f;
        barrier_wait(ring.own_there(), turn & 1);
        Left queries;
        keep_wide(queries, ring.own_tile(0, 0), member);
        // The first share has read what the others left.
        if (turn > 0) named_barrier(1, COMPUTING_THREADS);
        const u32 count = of_block(visits.count, rank);
        visit_all(found, place, queries, before, count, visits.first / TILE, call.scale_log2, member);
        before += count;
        hold(queries, call.time == 0, place.turned);

        float* at = place.turned_floats + threadIdx.x % 128;
        named_barrier(1, COMPUTING_THREADS);
        if (member.share > 0) leave(at + (member.share - 1) * NUMBERS * 128, found);
        named_barrier(1, COMPUTING_THREADS);
        if (member.share > 0) continue;
        for (u32 share = 1; share < SHARES; share++) gather(at + (share - 1) * NUMBERS * 128, found);
#if CLUSTER > 1
        const Halves<4, 1> halves{place.sent, ring.sent(turn), turn};
        finish_own_half(found, halves, rank);
#endif
        float factors[2];
        finish_rows(factors, found, call, visits.task, visits.first, rank, member);
        const u32 stride_bytes = channels(call) * ELEMENT_BYTES;
        const u64 out = head_of_out(call, call.out, visits.task) + (u64)visits.first * stride_bytes;
        const u32 limit = call.time - visits.first;
        if (CLUSTER == 1) {
            store_wide<0, 8>(out, stride_bytes, limit, found.sums, factors, member);
        } else if (rank == 0) {
            store_wide<0, 4>(out, stride_bytes, limit, found.sums, factors, member);
        } else {
            store_wide<4, 4>(out, stride_bytes, limit, found.sums, factors, member);
        }
    }
}

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, BLOCKS_MIN)
    attention_forward(const __grid_constant__ RingAttention all) {
    DYNAMIC_SHARED(shared);
    Place place;
    // From a multiple of 1024 on, since there is no other shared memory.
    place.ring.own = shared_address(shared);
    place.ring.stages = place.ring.own + TILE_BYTES;
    place.turned = place.ring.stages + STAGES * 2 * TILE_BYTES;
    place.turned_floats = reinterpret_cast<float*>(shared + (1 + STAGES * 2) * TILE_BYTES);
    place.sent = place.turned + SHARES * TILE_BYTES;
    place.ring.barriers = place.sent + SENT_BYTES;
    begin(place.ring);
    const u32 warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    if (warp >= COMPUTING_WARPS) {
        registers_give();
        if (threadIdx.x == COMPUTING_THREADS) fetch(place.ring, all);
    } else {
        registers_take<REGISTERS>();
        compute(place, all, member_of(warp));
    }
}
