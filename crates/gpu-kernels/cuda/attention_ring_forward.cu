// Causal attention, forward, where four warps make products as one. Formula and statistics: attention.cuh; who does
// what: attention_ring.cuh. Launched by src/attention.rs.
//
// A task is ROWS queries, which visit keys and values. Each group keeps its own largest scores, sums of exponentials
// and weighted values; the first share puts them together.
//
// Grid: at most a block for every tile of queries of every head. Overwrites all of out and statistics. Shared
// memory: SHARED_BYTES at launch, from a multiple of 1024 on: queries, the ring, what shares leave, barriers.
//
// Defines: those of attention_ring.cuh.

// The first share of each unit.
#define SENDING_GROUPS UNITS
#include "attention_found.cuh"

static constexpr u32 LEFT_BYTES = (SHARES - 1) * UNITS * 128 * NUMBERS * 4;
static_assert(SHARED_BYTES >= 1024 + UNITS * (TILE_BYTES + SENT_BYTES) + STAGES * 2 * TILE_BYTES + LEFT_BYTES +
                                  BARRIER_BYTES,
              "room for everything");

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
        barrier_expect(ring.own_there(), UNITS * TILE_BYTES);
        for (u32 unit = 0; unit < UNITS; unit++) {
            piece_begin(ring.own_tile(0, unit), all.qkv, channel, visits.first + unit * TILE, window, ring.own_there());
        }
#pragma unroll 1
        for (u32 j = rank_in_cluster(); j < visits.count; j += CLUSTER, visit++) {
            const Use use = use_of(visit);
            if (visit >= STAGES) barrier_wait(ring.done(use.stage), use.parity ^ 1);
#pragma unroll
            for (u32 which = 0; which < 2; which++) {
                const Shared there = ring.there(use.stage, which);
                barrier_expect(there, TILE_BYTES);
                piece_begin(ring.tile(use.stage, which), all.qkv, channel + (which + 1) * apart, j * TILE, window,
                            there);
            }
        }
    }
}

__device__ __forceinline__ void compute(const Ring& ring, Shared left, [[maybe_unused]] Shared sent, u8* shared,
                                        const RingAttention& all,
                                        const Member& member) {
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
        const Own<KEPT == 1> queries(ring.own_tile(0, member.unit), member);

        // The tiles that the unit sees, the last one in part.
        const u32 diagonal = visits.first / TILE + member.unit;
        const u32 seen = of_block(min(diagonal + 1, visits.count), rank), count = of_block(visits.count, rank);
        Tile scores;
        const auto begin_scores = [&](u32 j) {
            const Use use = use_of(before + j);
            barrier_wait(ring.there(use.stage, 0), use.parity);
            group_fence();
            begin_rows(scores, queries, ring.tile(use.stage, 0));
            group_commit();
        };
        u32 j = member.share;
        if (j < seen) {
            Left probabilities;
            float factors[2];
            const auto turn_scores = [&] {
                const bool is_diagonal = CLUSTER * j + rank == diagonal;
                return exponentials(factors, found, scores, call.scale_log2, is_diagonal, member);
            };
            const auto begin_values = [&](const Use& use) {
                barrier_wait(ring.there(use.stage, 1), use.parity);
                pin(found.sums);
                group_fence();
                begin_columns(found.sums, probabilities, ring.tile(use.stage, 1));
                group_commit();
            };
            begin_scores(j);
            finish(scores);
            // What is kept has been read now.
            if (KEPT == 1) arrive(ring.own_done(), member);
            turn_scores();
            pack(probabilities, scores);
            // Scores of the next tile are made first, so that its exponentials have this one's values beside them.
#pragma unroll 1
            for (; j + SHARES < seen;) {
                const Use use = use_of(before + j);
                j += SHARES;
                begin_scores(j);
                begin_values(use);
                group_wait_but<1>();
                pin(scores);
                const bool is_larger = turn_scores();
                finish(found.sums);
                arrive(ring.done(use.stage), member);
                // Seldom after the first few tiles.
                if (__any_sync(0xFFFFFFFFu, is_larger)) {
#pragma unroll
                    for (u32 i = 0; i < 32; i++) found.sums[i / 4][i % 4] *= factors[i % 4 / 2];
                }
                pack(probabilities, scores);
            }
            const Use use = use_of(before + j);
            begin_values(use);
            finish(found.sums);
            arrive(ring.done(use.stage), member);
            j += SHARES;
        }
        if (KEPT < 1 || member.share >= seen) arrive(ring.own_done(), member);
        // What other units see.
        for (; j < count; j += SHARES) {
            const Use use = use_of(before + j);
            barrier_wait(ring.there(use.stage, 0), use.parity);
            barrier_wait(ring.there(use.stage, 1), use.parity);
            arrive(ring.done(use.stage), member);
        }
        before += count;

        if constexpr (SHARES > 1) {
            const u32 thread = threadIdx.x % 128;
            float* at = reinterpret_cast<float*>(shared + (left - shared_address(shared))) + thread;
            named_barrier(1, COMPUTING_THREADS);
            if (member.share > 0) leave(at + ((member.share - 1) * UNITS + member.unit) * NUMBERS * 128, found);
            named_barrier(1, COMPUTING_THREADS);
            if (member.share > 0) continue;
            for (u32 share = 1; share < SHARES; share++) {
                gather(at + ((share - 1) * UNITS + member.unit) * NUMBERS * 128, found);
            }
        }
#if CLUSTER > 1
        const Halves<4, 1> halves{sent + member.unit * SENT_BYTES, ring.sent(turn), turn};
        finish_own_half(found, halves, rank);
#endif
        const u32 first = visits.first + member.unit * TILE;
        float factors[2];
        finish_rows(factors, found, call, visits.task, first, rank, member);
        const u32 stride_bytes = channels(call) * ELEMENT_BYTES;
        const u64 out = head_of_out(call, call.out, visits.task) + (u64)first * stride_bytes;
        const u32 limit = first < call.time ? call.time - first : 0;
        if (CLUSTER == 1) {
            store_tile<0, 8>(out, stride_bytes, limit, found.sums, factors, member);
        } else if (rank == 0) {
            store_tile<0, 4>(out, stride_bytes, limit, found.sums, factors, member);
        } else {
            store_tile<4, 4>(out, stride_bytes, limit, found.sums, factors, member);
        }
    }
}

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, BLOCKS_MIN)
    attention_forward(const __grid_constant__ RingAttention all) {
    DYNAMIC_SHARED(shared);
    Ring ring;
    ring.own = (shared_address(shared) + 1023) & ~(Shared)1023;
    ring.stages = ring.own + UNITS * TILE_BYTES;
    const Shared left = ring.stages + STAGES * 2 * TILE_BYTES;
    ring.barriers = left + LEFT_BYTES + UNITS * SENT_BYTES;
    begin(ring);
    launch_wait();
    launch_next();
    const u32 warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    if (warp >= COMPUTING_WARPS) {
        registers_give();
        if (threadIdx.x == COMPUTING_THREADS) fetch(ring, all);
    } else {
        registers_take<REGISTERS>();
        compute(ring, left, left + LEFT_BYTES, shared, all, member_of(warp));
    }
}
