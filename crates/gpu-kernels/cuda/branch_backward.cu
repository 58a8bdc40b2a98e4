// The way back through the beginning of a branch, in one: the gradient of its first linear layer's input,
// that of the LayerNorm before it, and the residual sum. Launched by src/branch.rs.
//
//   d_out = d_y W^T                                                      [rows, C]
//   n = (x - mean) scale, g = d_out gain, as in layernorm.cu:
//   d_x = (g - mean_c g - n mean_c(g n)) scale + d_residual              overwritten
//
// d_y [rows, DEPTH], W [C, DEPTH]. The sums of d_x, d_out n and d_out over the 64 rows of a cluster are left
// in `partials` [row tiles, 3 C], as layernorm.cu leaves those of its blocks. d_out is not rounded.
//
// Grid: clusters of C / 64 blocks of TILE_THREADS, one for every 64 rows. How the product is made: tile.cuh.
//
// Defines: CHANNELS, SHARED_BYTES, and those of tile.cuh.

#include "branch_rows.cuh"
#include "norm_backward.cuh"

struct Branch {
    TensorMap left;
    TensorMap right;
    Stored* d_x;
    const Stored* x;
    const float* statistics;
    const float* gain;
    const Stored* d_residual;
    float* partials;
    u32 rows;
};

extern "C" __global__ void __cluster_dims__(TILES_OF_ROW, 1, 1) __launch_bounds__(TILE_THREADS, 1)
    branch_backward(const __grid_constant__ Branch branch) {
    DYNAMIC_SHARED(shared);
    alignas(8) __shared__ float columns[TILE_WARPS][COLUMN_SUMS][TILE];
    const Place place = place_of_thread(shared);
    begin(place);
    cluster_arrive();
    if (place.group == TILE_GROUPS) {
        fetch_all(place, branch.left, branch.right);
        return cluster_wait();
    }

    const u32 row = place.first_row + place.tile_row, column = place.first_column + 2 * place.t;
    NormTerms terms;
    load_terms(terms, branch.x, branch.statistics, branch.gain, branch.d_residual, row, column, branch.rows);
    float sums[8][4];
    if (!compute(sums, place.ring, place.group)) return cluster_wait();

    Pair g[8][2], d_x[8][2], found[2], all[2][TILES_OF_ROW];
    gradient_sums(g, found, sums, terms);
    exchange(place, found, all);
    input_gradient(d_x, g, all, terms, row, branch.rows);
    store_rows(branch.d_x, place, branch.rows, [&](u32 i, u32 half) { return d_x[i][half]; });

    const Shared left = shared_address(columns);
    warp_column_sums(left + place.warp * sizeof(columns[0]), d_x, sums, terms, place.g, place.t);
    named_barrier(1, TILE_WARPS * 32);
    float* partials = branch.partials + (u64)(blockIdx.x / TILES_OF_ROW) * COLUMN_SUMS * CHANNELS;
    store_column_sums(partials, left, sizeof(columns[0]), place.first_column);
}
