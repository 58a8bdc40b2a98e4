// The beginning of attention's backward pass, in one: the gradient of the linear layer behind it, and the pairs
// of each row of attention_pairs.cuh. Launched by src/attention/start.rs.
//
//   d_out = d_y W^T                                     [rows, C]
//
// d_y [rows, DEPTH], W [C, DEPTH]; a tile is 64 rows of a head.
//
// Grid: a block of TILE_THREADS for every 64 x 64 of d_out. How the product is made: tile.cuh.
//
// Defines: those of tile_rows.cuh.

#define EXCHANGES 0

#include "attention_pairs.cuh"
#include "tile_rows.cuh"

struct Start {
    TensorMap left;
    TensorMap right;
    Stored* d_out;
    AttentionRows attention;
    u32 rows;
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
    AttentionTerms terms;
    load_terms(terms, start.attention, row, column, HEADS, head, start.rows);
    float sums[8][4];
    if (!compute(sums, place.ring, place.group)) return;
    const auto d_out = [&](u32 i, u32 half) { return rounded(Pair{sums[i][2 * half], sums[i][2 * half + 1]}); };
    store_rows(start.d_out, place, start.rows, d_out);
    store_pairs(start.attention, terms, row, place.t, HEADS, head, start.rows, d_out);
}
