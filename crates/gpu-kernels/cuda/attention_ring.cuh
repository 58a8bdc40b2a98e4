// What both passes of attention share where four warps make products as one (wgmma.cuh): heads of 64 channels in
// bf16, or in tf32 with what attention_wide.cuh adds, on devices of compute capability 9.0.
//
// A task is ROWS = 64 UNITS rows of a head (queries, or keys), for which others are visited in tiles of 64. A group
// of four warps has a unit of the rows and a share of the visits: visit j is share j % SHARES's. What the shares
// found is put together in their order at the end of a task.
//
// Where CLUSTER is 2, two blocks have the same task, of which each visits every second tile; a block sends what it
// found of half of the channels to the other, and finishes the other half.
//
// One warp fetches: own rows to a place of their own, visited tiles to a ring of STAGES places, for one task after the
// other without a pause. Barriers tell when something is there, and when it is done with. Rows beyond the last of a
// window come as zeros.
//
// Clusters, or blocks by themselves, take turns with the tasks: attention_turns.cuh.
//
// Defines beyond attention.cuh: UNITS, SHARES, CLUSTER, STAGES, REGISTERS (of a computing thread), KEPT (how many
// arrays of own rows stay in registers), TAKES (1 where blocks take tasks as they get free), SHARED_BYTES; and
// SENDING_GROUPS, of a kernel.
#pragma once

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

#include "attention_turns.cuh"
#include "wgmma.cuh"

static constexpr u32 TILE = 64;
static constexpr u32 TILE_BYTES = TILE * HEAD_SIZE * ELEMENT_BYTES;
static constexpr u32 ROWS = UNITS * TILE;
static constexpr u32 GROUP_WARPS = 4;
static constexpr u32 COMPUTING_WARPS = UNITS * SHARES * GROUP_WARPS;
static constexpr u32 COMPUTING_THREADS = COMPUTING_WARPS * 32;
static_assert(THREADS == COMPUTING_THREADS + 128, "a group of warps that fetches");
static_assert(HEAD_SIZE == 64, "rows of 64 channels");
// Products along a row.
static constexpr u32 STEPS = HEAD_SIZE * ELEMENT_BYTES / 32;

struct RingAttention {
    // qkv and d_out.
    TensorMap qkv;
    TensorMap d_out;
    Attention call;
};

// A tile of 64 x 64 of sums, and a left operand of 64 x 64.
typedef float Tile[8][4];
typedef u32 Left[STEPS][4];

struct Ring {
    Shared own;
    Shared stages;
    Shared barriers;

    __device__ __forceinline__ Shared own_tile(u32 which, u32 unit) const {
        return own + (which * UNITS + unit) * TILE_BYTES;
    }
    __device__ __forceinline__ Shared tile(u32 stage, u32 which) const {
        return stages + (stage * 2 + which) * TILE_BYTES;
    }
    __device__ __forceinline__ Shared own_there() const { return barriers; }
    __device__ __forceinline__ Shared own_done() const { return barriers + 8; }
    __device__ __forceinline__ Shared there(u32 stage, u32 which) const {
        return barriers + 16 + stage * 24 + which * 8;
    }
    __device__ __forceinline__ Shared done(u32 stage) const { return barriers + 16 + stage * 24 + 16; }
    // Of what the other block of the cluster sends, in odd and in even turns.
    __device__ __forceinline__ Shared sent(u32 turn) const { return barriers + 16 + STAGES * 24 + turn % 2 * 8; }
    __device__ __forceinline__ Turns turns() const { return {barriers + 16 + STAGES * 24 + 16}; }
};
static constexpr u32 BARRIER_BYTES = 16 + STAGES * 24 + 16 + TURN_BYTES;

// Sets the barriers up, by all threads.
__device__ __forceinline__ void begin(const Ring& ring) {
    const u32 place = threadIdx.x;
    if (place < STAGES) {
        barrier_set(ring.there(place, 0), 1);
        barrier_set(ring.there(place, 1), 1);
        barrier_set(ring.done(place), UNITS * GROUP_WARPS);
    } else if (place < STAGES + 2) {
        barrier_set(ring.sent(place), SENDING_GROUPS);
    } else if (place == STAGES + 2) {
        barrier_set(ring.own_there(), 1);
        barrier_set(ring.own_done(), COMPUTING_WARPS);
    } else if (place < STAGES + 3 + TURN_BARRIERS) {
        barrier_set(ring.turns().told(place - STAGES - 3), 1);
    }
    if (place < 32) barriers_publish();
    __syncthreads();
#if CLUSTER > 1
    cluster_arrive();
#endif
}
static_assert(STAGES + 3 + TURN_BARRIERS <= 32, "places for the threads of a warp");

// The place of this block in its cluster, and how many of `count` tiles that all visit are its own: tile i of it is
// tile CLUSTER i + rank of all.
__device__ __forceinline__ u32 rank_in_cluster() { return blockIdx.x % CLUSTER; }
__device__ __forceinline__ u32 of_block(u32 count, u32 rank) { return (count + CLUSTER - 1 - rank) / CLUSTER; }

// Where a computing thread stands.
struct Member {
    u32 warp;
    u32 unit;
    u32 share;
    u32 lane;
    u32 g;
    u32 t;
    // The first of its two rows, 8 apart, in its unit.
    u32 row;
};

__device__ __forceinline__ Member member_of(u32 warp) {
    Member member;
    member.warp = warp % GROUP_WARPS;
    const u32 group = warp / GROUP_WARPS;
    member.unit = group % UNITS;
    member.share = group / UNITS;
    member.lane = threadIdx.x % 32;
    member.g = member.lane / 4;
    member.t = member.lane % 4;
    member.row = member.warp * 16 + member.g;
    return member;
}

// A place of the ring, and how often it was used before.
struct Use {
    u32 stage;
    u32 parity;
};
__device__ __forceinline__ Use use_of(u32 visit) { return {visit % STAGES, visit / STAGES & 1}; }

// Reads the warp's 16 rows of a tile as a left operand.
__device__ __forceinline__ void keep(Left& left, Shared tile, const Member& member) {
    const u32 row = member.warp * 16 + member.lane % 16;
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        load_matrices(left[step], tile + exchanged_piece(row, step * 2 + member.lane / 16));
    }
}

// A group's own rows: in registers where there is room, else where they came to.
template <bool IS_KEPT>
struct Own {
    Left kept;
    Shared tile;

    __device__ __forceinline__ Own(Shared from, const Member& member) : tile(from) {
        if (IS_KEPT) keep(kept, from, member);
    }
};

// Begins sums = left times the rows of a tile.
template <bool IS_KEPT>
__device__ __forceinline__ void begin_rows(Tile& sums, const Own<IS_KEPT>& own, Shared tile) {
    if constexpr (!IS_KEPT) {
        group_rows<false>(sums, own.tile, tile, 0);
#pragma unroll
        for (u32 step = 1; step < STEPS; step++) group_rows<true>(sums, own.tile, tile, step);
        return;
    }
    const Left& left = own.kept;
    group_rows<false>(sums, left[0], tile, 0);
#pragma unroll
    for (u32 step = 1; step < STEPS; step++) group_rows<true>(sums, left[step], tile, step);
}

// Begins sums += left times a tile.
__device__ __forceinline__ void begin_columns(Tile& sums, const Left& left, Shared tile) {
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) group_columns(sums, left[step], tile, step);
}

// Sums as a left operand.
__device__ __forceinline__ void pack(Left& left, const Tile& sums) {
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        const float(&a)[4] = sums[2 * step];
        const float(&b)[4] = sums[2 * step + 1];
        left[step][0] = pack_bf16(a[0], a[1]);
        left[step][1] = pack_bf16(a[2], a[3]);
        left[step][2] = pack_bf16(b[0], b[1]);
        left[step][3] = pack_bf16(b[2], b[3]);
    }
}

// Scores of keys that their queries do not see, in the tile where they are the same tokens, have the probability 0.
template <bool ROWS_ARE_KEYS>
__device__ __forceinline__ void hide(Tile& scores, const Member& member) {
    // How far the thread's first row is ahead of its first column.
    const i32 ahead = (i32)member.row - (i32)(member.t * 2);
#pragma unroll
    for (i32 i = 0; i < 32; i++) {
        const i32 further = i / 4 * 8 + i % 2 - i % 4 / 2 * 8;
        if (ROWS_ARE_KEYS ? ahead > further : further > ahead) scores[i / 4][i % 4] = -infinity();
    }
}

__device__ __forceinline__ void set_zero(Tile& sums) {
#pragma unroll
    for (u32 i = 0; i < 32; i++) sums[i / 4][i % 4] = 0.0f;
}

// Waits for all products.
__device__ __forceinline__ void finish(Tile& sums) {
    group_wait_but<0>();
    pin(sums);
}

// One lane of the warp arrives.
__device__ __forceinline__ void arrive(Shared barrier, const Member& member) {
    __syncwarp();
    if (member.lane == 0) barrier_arrive(barrier);
}

// Turns four words of each of four lanes side by side: lane t gets word t of all of them, in their order.
__device__ __forceinline__ void turn_words(u32 (&words)[4], u32 t) {
#pragma unroll
    for (u32 mask = 1; mask <= 2; mask *= 2) {
        const bool is_second = (t & mask) != 0;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (i & mask) continue;
            const u32 other = __shfl_xor_sync(0xFFFFFFFFu, is_second ? words[i] : words[i + mask], mask);
            words[i] = is_second ? other : words[i];
            words[i + mask] = is_second ? words[i + mask] : other;
        }
    }
}

// Writes rows below `limit` of FIRST to FIRST + COUNT tiles of eight channels, times a factor for each row; `to` is the
// address of the unit's first row. Of four tiles each of the four lanes that share a row writes one.
template <u32 FIRST, u32 COUNT>
__device__ __forceinline__ void store_tile(u64 to, u32 stride_bytes, u32 limit, const Tile& sums,
                                           const float (&factors)[2], const Member& member) {
    static_assert(COUNT % 4 == 0, "tiles for four lanes");
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 row = member.row + 8 * half;
        const float factor = factors[half];
#pragma unroll
        for (u32 n = FIRST; n < FIRST + COUNT; n += 4) {
            u32 words[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                words[i] = pack_bf16(sums[n + i][half * 2] * factor, sums[n + i][half * 2 + 1] * factor);
            }
            turn_words(words, member.t);
            if (row < limit) {
                store(to + (u64)row * stride_bytes + (n + member.t) * 16,
                      make_uint4(words[0], words[1], words[2], words[3]));
            }
        }
    }
}

#if CLUSTER > 1
// What a group and that of the same place in the other block of the cluster send each other in a turn: COUNT tiles of
// eight channels, and MORE sets of four numbers. `place` has room for [2, 5, 128] of those.
template <u32 COUNT, u32 MORE = 0>
struct Halves {
    Shared place;
    Shared barrier;
    u32 turn;

    static_assert(COUNT + MORE <= 5, "room");

    __device__ __forceinline__ Shared set(u32 i) const {
        return place + (turn % 2 * 5 + i) * 128 * 16 + threadIdx.x % 128 * 16;
    }
    template <u32 THEIRS>
    __device__ __forceinline__ void tell(const Tile& sums, u32 rank) const {
        if (threadIdx.x % 128 == 0) barrier_expect(barrier, (COUNT + MORE) * 128 * 16);
        const Shared there = place_of(barrier, rank ^ 1);
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            const float(&a)[4] = sums[THEIRS + i];
            send(place_of(set(i), rank ^ 1), there, a[0], a[1], a[2], a[3]);
        }
    }
    __device__ __forceinline__ void tell_more(const float (&more)[4], u32 rank) const {
        send(place_of(set(COUNT), rank ^ 1), place_of(barrier, rank ^ 1), more[0], more[1], more[2], more[3]);
    }
    __device__ __forceinline__ void wait() const { barrier_wait(barrier, turn / 2 & 1); }
    __device__ __forceinline__ void get(float (&four)[4], u32 i) const {
        const uint4 words = load_shared_four(set(i));
        four[0] = as_float(words.x);
        four[1] = as_float(words.y);
        four[2] = as_float(words.z);
        four[3] = as_float(words.w);
    }
};
#endif
