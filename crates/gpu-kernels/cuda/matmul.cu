// A matrix product of any shape, for machines without cuBLASLt, and where its rules exclude a shape.
// Launched by src/product.rs.
//
//   out[i, j] = sum_l a[i, l] b[l, j] + bias[j]      i < m, j < n, l < k
//
// Element a[i, l] lies at a + i * a_row + l * a_column, and so on, so that either side may be
// transposed. Inputs are activations, or f32; sums are f32, in ascending l. Overwrites out, or adds
// to it.
//
// Grid: tiles of TILE x TILE outputs, those of one row of tiles first, a block of THREADS each. A
// thread has SHARE x SHARE outputs, in registers; STEPS of l at a time pass through shared memory.
//
// Defines: THREADS = 256, ACTIVATION_BYTES (of a and b), OUTPUT_BYTES.

#include "numbers.cuh"

static constexpr u32 TILE = 64;
static constexpr u32 STEPS = 16;
static constexpr u32 SHARE = 4;
static constexpr u32 SIDE = TILE / SHARE;
static_assert(SIDE * SIDE == THREADS, "a thread for every share of a tile");

#if OUTPUT_BYTES == 2
typedef u16 Output;
#else
typedef float Output;
#endif

struct Product {
    Output* out;
    const Stored* a;
    const Stored* b;
    // Null without one.
    const Output* bias;
    u64 out_row;
    u64 a_row;
    u64 a_column;
    u64 b_row;
    u64 b_column;
    u32 m;
    u32 n;
    u32 k;
    u32 adds;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul(const __grid_constant__ Product args) {
    __shared__ float a[STEPS][TILE + 1], b[STEPS][TILE + 1];
    const u32 tiles = (args.n + TILE - 1) / TILE;
    const u32 i0 = blockIdx.x / tiles * TILE, j0 = blockIdx.x % tiles * TILE;
    const u32 row = threadIdx.x / SIDE, column = threadIdx.x % SIDE;
    float sums[SHARE][SHARE] = {};
    for (u32 l0 = 0; l0 < args.k; l0 += STEPS) {
        for (u32 at = threadIdx.x; at < TILE * STEPS; at += THREADS) {
            // Neighbours in memory go to neighbouring threads.
            const u32 ai = args.a_column == 1 ? at / STEPS : at % TILE;
            const u32 al = args.a_column == 1 ? at % STEPS : at / TILE;
            const u32 bj = args.b_column == 1 ? at % TILE : at / STEPS;
            const u32 bl = args.b_column == 1 ? at / TILE : at % STEPS;
            const bool has_a = i0 + ai < args.m && l0 + al < args.k;
            const bool has_b = j0 + bj < args.n && l0 + bl < args.k;
            a[al][ai] = has_a ? widen(args.a[(i0 + ai) * args.a_row + (l0 + al) * args.a_column]) : 0.0f;
            b[bl][bj] = has_b ? widen(args.b[(l0 + bl) * args.b_row + (j0 + bj) * args.b_column]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 l = 0; l < STEPS; l++) {
#pragma unroll
            for (u32 i = 0; i < SHARE; i++) {
#pragma unroll
                for (u32 j = 0; j < SHARE; j++) {
                    sums[i][j] = fmaf(a[l][row + i * SIDE], b[l][column + j * SIDE], sums[i][j]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < SHARE; i++) {
#pragma unroll
        for (u32 j = 0; j < SHARE; j++) {
            const u32 out_i = i0 + row + i * SIDE, out_j = j0 + column + j * SIDE;
            if (out_i >= args.m || out_j >= args.n) continue;
            Output* out = args.out + out_i * args.out_row + out_j;
            float sum = sums[i][j];
            if (args.bias) sum += widen(args.bias[out_j]);
            if (args.adds) sum += widen(*out);
            narrow_to(*out, sum);
        }
    }
}
