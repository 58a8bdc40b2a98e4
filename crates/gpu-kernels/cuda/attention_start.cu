// The beginning of attention's backward pass, in one: the gradient of the linear layer behind it, and the pairs
// of each row that attention_planes.cuh describes. Launched by src/attention/start.rs.
//
//   d_out = d_y W^T                                     [rows, C]
//   pairs of row t of a head = {shift - log2(reciprocal), d_out . out}, of its 64 channels
//
// d_y [rows, DEPTH], W [C, DEPTH]; a tile is 64 rows of a head. Windows of `time` rows are not padded, so every
// pair is written.
//
// Grid: a block of TILE_THREADS for every 64 x 64 of d_out. How the product is made: tile.cuh.
//
// Defines: those of tile_rows.cuh.

#define EXCHANGES 0

#include "tile_rows.cuh"

struct Start {
    TensorMap left;
    TensorMap right;
    Stored* d_out;
    const Stored* out;
    // [rows, heads, 2]: largest score and 1 / sum, as attention.cuh describes.
    const float* statistics;
    // [windows, heads, time, 2]
    float* pairs;
    u32 rows;
    u32 time;
};

extern "C" __global__ void __launch_bounds__(TILE_THREADS, BLOCKS_MIN)
    attention_start(const __grid_constant__ Start start) {
    DYNAMIC_SHARED(shared);
    const Place place = place_of_thread(shared);
    begin(place);
    if (place.group == TILE_GROUPS) return fetch_all(place, start.left, start.right);

    constexpr u32 HEADS = TILES_OF_ROW;
    const u32 row = place.first_row + place.tile_row, column = place.first_column + 2 * place.t;
    const u32 head = place.first_column / TILE;
    // On its way while the product is made.
    Pair out[8][2], statistics[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 at = row + 8 * half < start.rows ? row + 8 * half : 0;
        statistics[half] = load_pair_f32(start.statistics + ((u64)at * HEADS + head) * 2);
#pragma unroll
        for (u32 i = 0; i < 8; i++) out[i][half] = load_pair(start.out + (u64)at * COLUMNS + column + 8 * i);
    }
    float sums[8][4];
    if (!compute(sums, place.ring, place.group)) return;
    const auto d_out = [&](u32 i, u32 half) { return rounded(Pair{sums[i][2 * half], sums[i][2 * half + 1]}); };
    store_rows(start.d_out, place, start.rows, d_out);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float o = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const Pair d = d_out(i, half);
            o = fmaf(out[i][half].low, d.low, fmaf(out[i][half].high, d.high, o));
        }
        o = over_row(o);
        const u32 at = row + 8 * half;
        if (place.t == 0 && at < start.rows) {
            const u64 of_head = (u64)(at / start.time) * HEADS + head;
            float* pair = start.pairs + (of_head * start.time + at % start.time) * 2;
            pair[0] = statistics[half].low - log2_fast(statistics[half].high);
            pair[1] = o;
        }
    }
}
