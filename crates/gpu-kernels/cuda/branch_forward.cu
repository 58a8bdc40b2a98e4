// The end of a branch of a block, in one: its last linear layer, the residual sum, and the LayerNorm that
// follows. Launched by src/branch.rs.
//
//   x = residual + left W + b          out = (x - mean) scale gain + bias        [rows, C]
//
// with mean and scale of each row of x, as it is stored, as in layernorm.cu; they are left in `statistics`
// [rows, 2]. left [rows, DEPTH], W [DEPTH, C] or its transpose. All of out, x and statistics are overwritten.
//
// Grid: clusters of C / 64 blocks of TILE_THREADS, one for every 64 rows. How the product is made: tile.cuh.
//
// Defines: CHANNELS, EPSILON, SHARED_BYTES, and those of tile.cuh.

#include "branch_rows.cuh"
#include "norm_forward.cuh"

struct Branch {
    TensorMap left;
    TensorMap right;
    Stored* out;
    Stored* x;
    float* statistics;
    const Stored* residual;
    const Stored* layer_bias;
    const float* gain_bias;
    u32 rows;
};

extern "C" __global__ void __cluster_dims__(TILES_OF_ROW, 1, 1) __launch_bounds__(TILE_THREADS, 1)
    branch_forward(const __grid_constant__ Branch branch) {
    DYNAMIC_SHARED(shared);
    const Place place = place_of_thread(shared);
    begin(place);
    cluster_arrive();
    if (place.group == TILE_GROUPS) {
        fetch_all(place, branch.left, branch.right);
        return cluster_wait();
    }

    const u32 row = place.first_row + place.tile_row, column = place.first_column + 2 * place.t;
    BranchTerms terms;
    load_terms(terms, branch.residual, branch.layer_bias, branch.gain_bias, row, column, branch.rows);
    float sums[8][4];
    if (!compute(sums, place.ring, place.group)) return cluster_wait();

    Pair x[8][2], found[2], all[2][TILES_OF_ROW];
    residual_sum(x, found, sums, terms);
    exchange(place, found, all);
    store_rows(branch.x, place, branch.rows, [&](u32 i, u32 half) { return x[i][half]; });
    const Pair of_rows[2] = {moments(all[0]), moments(all[1])};
    if (place.first_column == 0 && place.t == 0) store_moments(branch.statistics, of_rows, row, branch.rows);
    store_rows(branch.out, place, branch.rows, [&](u32 i, u32 half) {
        return normed(x[i][half], of_rows[half], terms.gain[i], terms.bias[i]);
    });
}
