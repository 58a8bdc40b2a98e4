// Products of f32, multiplied as tf32, of 192 x 160 outputs a block, whose right factor lies across its depth. Three groups of
// four warps compute 64 rows each, and a fourth one fetches pieces of 32 of depth and turns the right ones into a
// ring of its own, once for all three, since the instruction takes right operands along their depth only.
//
// Shared memory, from a multiple of 1024 on: rings of left, turned and right pieces, barriers.
//
// Defines: STAGES (of left and turned pieces), RAW_STAGES, SHARED_BYTES.
#pragma once

#include "engine.cuh"
#include "wgmma_tf32.cuh"

static constexpr u32 GROUPS = 3;
static constexpr u32 PIECE_DEPTH = 32;
static constexpr u32 LEFT_PANELS = GROUPS * 2;
static constexpr u32 RIGHT_PANELS = 5;
// A piece's part of 32 columns that lie side by side, and of 32 of depth.
static constexpr u32 PANEL_OF_PIECE = PIECE_DEPTH * 128;
static constexpr u32 LEFT_TILE = LEFT_PANELS * 32;
static constexpr u32 RIGHT_TILE = RIGHT_PANELS * 32;
static constexpr u32 LEFT_BYTES = LEFT_PANELS * PANEL_OF_PIECE;
static constexpr u32 RIGHT_BYTES = RIGHT_PANELS * PANEL_OF_PIECE;
static constexpr u32 COLUMN_STEPS = RIGHT_TILE / 8;
static constexpr u32 STEPS_OF_PIECE = PIECE_DEPTH / 8;
static constexpr u32 COMPUTE_THREADS = GROUPS * 128;
static constexpr u32 WIDE_THREADS = COMPUTE_THREADS + 128;
static_assert(ACTIVATION_BYTES == 4, "bf16 need not be turned");
static_assert(SHARED_BYTES >= STAGES * (LEFT_BYTES + RIGHT_BYTES) + RAW_STAGES * RIGHT_BYTES + STAGES * 24 + RAW_STAGES * 8,
              "room for everything");

struct Rings {
    Shared base;

    __device__ __forceinline__ Shared left(u32 stage) const { return base + stage * LEFT_BYTES; }
    __device__ __forceinline__ Shared turned(u32 stage) const {
        return base + STAGES * LEFT_BYTES + stage * RIGHT_BYTES;
    }
    __device__ __forceinline__ Shared raw(u32 stage) const { return turned(STAGES) + stage * RIGHT_BYTES; }
    __device__ __forceinline__ Shared left_there(u32 stage) const { return raw(RAW_STAGES) + stage * 24; }
    __device__ __forceinline__ Shared turned_there(u32 stage) const { return left_there(stage) + 8; }
    // Of a left and a turned piece.
    __device__ __forceinline__ Shared done(u32 stage) const { return left_there(stage) + 16; }
    __device__ __forceinline__ Shared raw_there(u32 stage) const { return left_there(STAGES) + stage * 8; }
};

// A place in a ring of COUNT, and which time around it is.
template <u32 COUNT>
struct Turn {
    u32 stage = 0;
    u32 parity = 0;

    __device__ __forceinline__ void advance() {
        stage++;
        if (stage == COUNT) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// By one thread, before all others may know of it.
__device__ __forceinline__ void set_barriers(const Rings& rings) {
#pragma unroll 1
    for (u32 stage = 0; stage < STAGES; stage++) {
        barrier_set(rings.left_there(stage), 1);
        barrier_set(rings.turned_there(stage), 4);
        barrier_set(rings.done(stage), GROUPS * 4);
    }
#pragma unroll 1
    for (u32 stage = 0; stage < RAW_STAGES; stage++) barrier_set(rings.raw_there(stage), 1);
    barriers_publish();
}

// Turns 32 rows of the right factor, by the fourth group. Each thread turns 4 x 4 numbers at a time, as in
// attention_wide.cuh: of every panel of 32 columns, two warps have a half each. Of eight rows the turned tile has the even ones
// first if EVEN_FIRST, or else all as they are; eight lanes never meet in banks.
template <bool EVEN_FIRST>
__device__ __forceinline__ void turn_piece(Shared to, Shared from) {
    const u32 warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, quad = lane % 8;
    // Four columns of the turned tile, and the rows that they are.
    const u32 columns = quad / 2 ^ (warp % 2 * 4 + lane / 8);
    const u32 first = EVEN_FIRST ? columns / 2 * 8 + columns % 2 : columns * 4, apart = EVEN_FIRST ? 2 : 1;
#pragma unroll
    for (u32 panel = 0; panel < RIGHT_PANELS; panel++) {
        if (panel % 2 != warp / 2) continue;
        uint4 rows[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            rows[i] = load_shared_four(from + panel * PANEL_OF_PIECE + exchanged_piece(first + apart * i, quad));
        }
        const Shared at = to + panel * PANEL_OF_PIECE + quad * 4 * 128;
        const auto place = [&](u32 i) { return at + i * 128 + (columns ^ (quad % 2 * 4 + i)) * 16; };
        store_shared_four(place(0), rows[0].x, rows[1].x, rows[2].x, rows[3].x);
        store_shared_four(place(1), rows[0].y, rows[1].y, rows[2].y, rows[3].y);
        store_shared_four(place(2), rows[0].z, rows[1].z, rows[2].z, rows[3].z);
        store_shared_four(place(3), rows[0].w, rows[1].w, rows[2].w, rows[3].w);
    }
}

// The part of the fourth group: it fetches and turns. Left and right pieces are those of walks, each of which has
// `is_left`, `fetch_left` or `fetch_right`, and `advance`.
template <bool EVEN_FIRST, class Walk>
__device__ __forceinline__ void turn_all(const Rings& rings, const Walk& begin) {
    const bool is_fetcher = threadIdx.x == COMPUTE_THREADS;
    Walk left = begin, raw = begin, here = begin;
    if (is_fetcher) {
#pragma unroll 1
        for (u32 i = 0; i < RAW_STAGES && raw.is_left(); i++, raw.advance()) raw.fetch_right(rings, i);
#pragma unroll 1
        for (u32 i = 0; i < STAGES && left.is_left(); i++, left.advance()) left.fetch_left(rings, i);
    }
    Turn<STAGES> turn;
    Turn<RAW_STAGES> from;
#pragma unroll 1
    for (u32 visit = 0; here.is_left(); visit++, here.advance()) {
        if (visit >= STAGES) {
            barrier_wait(rings.done(turn.stage), turn.parity ^ 1);
            if (is_fetcher) {
                left.fetch_left(rings, turn.stage);
                left.advance();
            }
        }
        barrier_wait(rings.raw_there(from.stage), from.parity);
        turn_piece<EVEN_FIRST>(rings.turned(turn.stage), rings.raw(from.stage));
        group_publish();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(rings.turned_there(turn.stage));
        // Nobody reads the piece any more.
        named_barrier(1, 128);
        if (is_fetcher && raw.is_left()) {
            raw.fetch_right(rings, from.stage);
            raw.advance();
        }
        turn.advance();
        from.advance();
    }
}

typedef float Sums[COLUMN_STEPS][4];

__device__ __forceinline__ void set_zero(Sums& sums) {
#pragma unroll
    for (u32 i = 0; i < COLUMN_STEPS * 4; i++) sums[i / 4][i % 4] = 0.0f;
    pin(sums);
}
