// What both passes of attention share where four warps make products of tf32 as one, beyond attention_ring.cuh: tiles of
// 64 rows of 256 bytes, and tiles that are turned.
//
// The instruction takes right operands along their rows only. So scores come from tiles as they are, but what is
// summed up over visited rows needs the visited tile turned: each group turns the one that it visits into a place
// of its own, beside the products of the scores. The rows of a turned tile are channels. Its columns are the visited
// rows, of each eight the even ones first: so the two scores side by side that a thread has of sums, columns
// 2t and 2t + 1, are t and t + 4 of a left operand, which is where it needs them.
//
// A unit is 64 rows, and a block has one. Barriers 2 and further are
// those of a group, and those at which groups wait for their turns.
#pragma once

#include "attention_ring.cuh"
#include "wgmma_tf32.cuh"

static_assert(UNITS == 1 && ELEMENT_BYTES == 4, "a group's visits are its own");

// Begins to copy a tile of matrix `window` from a channel and row on.
__device__ __forceinline__ void tile_begin(Shared to, const TensorMap& map, u32 channel, u32 row, u32 window,
                                           Shared there) {
    piece_begin(to, map, channel, row, window, there);
    piece_begin(to + PANEL_BYTES, map, channel + 32, row, window, there);
}

// Reads the warp's 16 rows of a tile as a left operand.
__device__ __forceinline__ void keep_wide(Left& left, Shared tile, const Member& member) {
    const u32 row = member.warp * 16 + member.lane % 16;
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        const u32 piece = step % 4 * 2 + member.lane / 16;
        load_matrices(left[step], tile + step / 4 * PANEL_BYTES + exchanged_piece(row, piece));
    }
}

// Reads what is kept once more, after all products, if that ever were to be: the assembler of CUDA 13.0 takes registers
// of a left operand for other ones as soon as it was read, though the next turn of a loop reads it again, unless
// something else reads it after the loop.
__device__ __forceinline__ void hold(const Left& left, bool never, Shared to) {
    if (!never) return;
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        store_shared_four(to + step * 16, left[step][0], left[step][1], left[step][2], left[step][3]);
    }
}

// Begins sums = left times the rows of a tile, or sums += that.
template <bool ADDS>
__device__ __forceinline__ void begin_wide(Tile& sums, const Left& left, Shared tile) {
    group_rows_tf32<ADDS>(sums, left[0], tile, 0);
#pragma unroll
    for (u32 step = 1; step < STEPS; step++) group_rows_tf32<true>(sums, left[step], tile, step);
}

// A number whose upper 19 bits, which products look at, are those of it rounded to the nearest tf32: half of the last place
// is added. Two instructions, where the one for it becomes three.
__device__ __forceinline__ u32 near_tf32(float number) {
    const float power = as_float(as_bits(number) & 0xFF800000u);
    return as_bits(__fmaf_rn(power, 0.00048828125f, number));
}

// Scores as a left operand, whose depth is in the order of a turned tile's columns.
__device__ __forceinline__ void pack_wide(Left& left, const Tile& scores) {
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        left[step][0] = near_tf32(scores[step][0]);
        left[step][1] = near_tf32(scores[step][2]);
        left[step][2] = near_tf32(scores[step][1]);
        left[step][3] = near_tf32(scores[step][3]);
    }
}

// Turns a tile, by the threads of a group. Each warp turns a quarter, each thread 4 x 4 numbers twice, by 16 bytes:
// eight lanes read whole rows, and what they write lies in eight different places of rows too. One after the other: there are
// no registers for both.
__device__ __forceinline__ void turn_tile(Shared to, Shared from, const Member& member) {
    const u32 panel = member.warp % 2, half = member.warp / 2, quad = member.lane % 8;
    from += panel * PANEL_BYTES + half * 32 * 128;
    to += half * PANEL_BYTES + (panel * 32 + quad * 4) * 128;
#pragma unroll 1
    for (u32 turn = 0; turn < 2; turn++) {
        // Four columns of the turned half: every second one of eight visited rows.
        const u32 columns = quad / 2 ^ (turn * 4 + member.lane / 8);
        const u32 first = columns / 2 * 8 + columns % 2;
        uint4 rows[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) rows[i] = load_shared_four(from + exchanged_piece(first + 2 * i, quad));
        const Shared at = to;
        const auto place = [&](u32 i) { return at + i * 128 + (columns ^ (quad % 2 * 4 + i)) * 16; };
        store_shared_four(place(0), rows[0].x, rows[1].x, rows[2].x, rows[3].x);
        store_shared_four(place(1), rows[0].y, rows[1].y, rows[2].y, rows[3].y);
        store_shared_four(place(2), rows[0].z, rows[1].z, rows[2].z, rows[3].z);
        store_shared_four(place(3), rows[0].w, rows[1].w, rows[2].w, rows[3].w);
    }
}

// Of the threads of the group.
__device__ __forceinline__ void group_barrier(const Member& member) { named_barrier(2 + member.share, 128); }

// Groups take turns with the tensor cores: while one makes products, the others turn tiles and scores. A group may begin
// when the one before it has begun all products of its turn.
__device__ __forceinline__ void products_wait(const Member& member, bool is_first) {
    if (!is_first || member.share > 0) named_barrier(2 + SHARES + member.share, 256);
}
__device__ __forceinline__ void products_pass(const Member& member, bool is_last) {
    if (!is_last || member.share + 1 < SHARES) named_arrive(2 + SHARES + (member.share + 1) % SHARES, 256);
}
// After the last of a group's visits, of `count` of all groups: where others have one more, there is one more turn.
__device__ __forceinline__ void products_end(const Member& member, u32 count) {
    const bool has_turn = count % SHARES > 0 && member.share >= count % SHARES;
    products_pass(member, !has_turn);
    if (has_turn) {
        products_wait(member, false);
        products_pass(member, true);
    }
}

// Writes rows below `limit` of FIRST to FIRST + COUNT tiles of eight channels, times a factor for each row; `to` is the
// address of the unit's first row.
template <u32 FIRST, u32 COUNT>
__device__ __forceinline__ void store_wide(u64 to, u32 stride_bytes, u32 limit, const Tile& sums,
                                           const float (&factors)[2], const Member& member) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 row = member.row + 8 * half;
        if (row >= limit) continue;
        const u64 at = to + (u64)row * stride_bytes + member.t * 8;
#pragma unroll
        for (u32 n = FIRST; n < FIRST + COUNT; n++) {
            store(at + n * 32, make_uint2(as_bits(sums[n][half * 2] * factors[half]),
                                          as_bits(sums[n][half * 2 + 1] * factors[half])));
        }
    }
}
