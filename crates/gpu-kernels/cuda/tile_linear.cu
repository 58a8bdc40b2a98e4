// A linear layer of few rows and columns, or the gradient of its input, with what follows. Launched by
// src/product/tiled.rs.
//
//   WITH_BIAS             out = left right + bias
//   the same, WITH_GELU   aux = left right + bias, out = gelu(aux)
//   WITH_GELU_GRADIENT    out = (left right) gelu'(aux)
//   otherwise             out = left right
//
// left [rows, DEPTH]; right [DEPTH, COLUMNS], or its transpose; out and aux [rows, COLUMNS]. GELU is of aux
// before it is rounded.
//
// Grid: a block of TILE_THREADS for every 64 x 64 of out. How the product is made: tile.cuh.
//
// Defines: WITH_BIAS and so on, 0 or 1; BLOCKS_MIN (that should fit a multiprocessor), GELU_SCALE, GELU_CUBIC; those of tile_rows.cuh.

#define EXCHANGES 0

#include "gelu.cuh"
#include "tile_rows.cuh"

struct Linear {
    TensorMap left;
    TensorMap right;
    Stored* out;
    Stored* aux;
    const Stored* bias;
    u32 rows;
};

extern "C" __global__ void __launch_bounds__(TILE_THREADS, BLOCKS_MIN)
    tile_linear(const __grid_constant__ Linear linear) {
    DYNAMIC_SHARED(shared);
    const Place place = place_of_thread(shared);
    begin(place);
    if (place.group == TILE_GROUPS) return fetch_all(place, linear.left, linear.right);

    const u32 row = place.first_row + place.tile_row, column = place.first_column + 2 * place.t;
    Pair bias[8], z[8][2];
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        if (WITH_BIAS) bias[i] = load_pair(linear.bias + column + 8 * i);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 at = row + 8 * half < linear.rows ? row + 8 * half : 0;
            if (WITH_GELU_GRADIENT) z[i][half] = load_pair(linear.aux + (u64)at * COLUMNS + column + 8 * i);
        }
    }
    float sums[8][4];
    if (!compute(sums, place.ring, place.group)) return;
    const auto sum = [&](u32 i, u32 half) {
        Pair pair = {sums[i][2 * half], sums[i][2 * half + 1]};
        if (WITH_BIAS) pair = {pair.low + bias[i].low, pair.high + bias[i].high};
        return pair;
    };
    if (WITH_GELU) store_rows(linear.aux, place, linear.rows, sum);
    store_rows(linear.out, place, linear.rows, [&](u32 i, u32 half) {
        const Pair pair = sum(i, half);
        if (WITH_GELU) return Pair{Value::of(0.0f, pair.low), Value::of(0.0f, pair.high)};
        if (WITH_GELU_GRADIENT) {
            return Pair{Gradient::of(pair.low, z[i][half].low), Gradient::of(pair.high, z[i][half].high)};
        }
        return pair;
    });
}
