// The end of a branch of a block, in one: its last linear layer, the residual sum, and the LayerNorm that
// follows. Launched by src/branch.rs.
//
//   x = residual + left W + b          out = (x - mean) scale gain + bias        [rows, C]
//
// with mean and scale of each row of x, as it is stored, as in layernorm.cu; they are left in `statistics`
// [rows, 2]. left [rows, DEPTH], W [DEPTH, C] or its transpose. All of out, x and statistics are overwritten.
//
// The variance is put together from the blocks' own means and sums of squares, so that nothing cancels.
//
// Grid: clusters of C / 64 blocks of TILE_THREADS, one for every 64 rows. How the product is made: tile.cuh.
//
// Defines: CHANNELS, EPSILON, SHARED_BYTES, and those of tile.cuh.

#include "branch_rows.cuh"

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
    // On its way while the product is made.
    Pair before[8][2], layer_bias[8], gain[8], bias[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        gain[i] = load_pair_f32(branch.gain_bias + column + 8 * i);
        bias[i] = load_pair_f32(branch.gain_bias + CHANNELS + column + 8 * i);
        layer_bias[i] = load_pair(branch.layer_bias + column + 8 * i);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 at = row + 8 * half < branch.rows ? row + 8 * half : 0;
            before[i][half] = load_pair(branch.residual + (u64)at * CHANNELS + column + 8 * i);
        }
    }
    float sums[8][4];
    if (!compute(sums, place.ring, place.group)) return cluster_wait();

    Pair x[8][2], found[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float sum = 0.0f, squares = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            x[i][half] = rounded(Pair{before[i][half].low + (sums[i][2 * half] + layer_bias[i].low),
                                      before[i][half].high + (sums[i][2 * half + 1] + layer_bias[i].high)});
            sum += x[i][half].low + x[i][half].high;
        }
        const float mean = over_row(sum) * (1.0f / TILE);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const float low = x[i][half].low - mean, high = x[i][half].high - mean;
            squares = fmaf(low, low, fmaf(high, high, squares));
        }
        found[half] = {mean, over_row(squares)};
    }
    Pair all[2][TILES_OF_ROW];
    exchange(place, found, all);
    store_rows(branch.x, place, branch.rows, [&](u32 i, u32 half) { return x[i][half]; });

    float means[2], scales[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float mean = 0.0f, squares = 0.0f;
#pragma unroll
        for (u32 block = 0; block < TILES_OF_ROW; block++) mean += all[half][block].low;
        mean *= 1.0f / TILES_OF_ROW;
#pragma unroll
        for (u32 block = 0; block < TILES_OF_ROW; block++) {
            const float deviation = all[half][block].low - mean;
            squares += fmaf(deviation * deviation, (float)TILE, all[half][block].high);
        }
        means[half] = mean;
        scales[half] = __fdiv_rn(1.0f, __fsqrt_rn(squares * PER_CHANNEL + EPSILON));
        if (place.first_column == 0 && place.t == 0 && row + 8 * half < branch.rows) {
            branch.statistics[2 * (u64)(row + 8 * half)] = mean;
            branch.statistics[2 * (u64)(row + 8 * half) + 1] = scales[half];
        }
    }
    store_rows(branch.out, place, branch.rows, [&](u32 i, u32 half) {
        return Pair{fmaf((x[i][half].low - means[half]) * scales[half], gain[i].low, bias[i].low),
                    fmaf((x[i][half].high - means[half]) * scales[half], gain[i].high, bias[i].high)};
    });
}
