// Products over the rows of two activations of f32, multiplied as tf32, of several pairs of them: the gradients of
// weights, on devices of compute capability 9.0. What they are: depth_products.cuh. Launched by src/depth_tiles.rs.
//
//   out[m, n] = sum over rows of left[row, m] right[row, n]        bias[m] = sum over rows of left[row, m]
//
// A task is LEFT_TILE x RIGHT_TILE of the outputs of one product after the other, those of the same m side by side. Sums are
// in ascending order of pieces of 32 rows, those of a bias of what products saw, each lane's first.
//
// How the right factor is turned: turned.cuh. Three groups of four warps read 64 of the task's m each across the rows, into
// registers, as left operands may be. Of eight rows a turned tile has the even ones first, and what lanes read of the
// left factor in that order lies in different banks.
//
// Grid: any number of blocks of WIDE_THREADS, which go through the tasks. A multiprocessor has room for one block and
// nothing beside it: what runs elsewhere on the device has its multiprocessors to itself.
//
// Defines: PRODUCTS_MAX; REGISTERS and TURNING_REGISTERS of a thread; those of turned.cuh; FOUR_WARPS, for the device.

#include "depth_products.cuh"
#include "turned.cuh"

struct Task {
    u32 product;
    u32 m;
    u32 n;
};

__device__ __forceinline__ Task task_of(const AllProducts& all, u32 number) {
    u32 index = 0;
#pragma unroll
    for (u32 i = 1; i < PRODUCTS_MAX; i++) {
        if (i < all.count && all.at[i].first_block <= number) index = i;
    }
    const Product& product = all.at[index];
    const u32 columns = (product.n_end + RIGHT_TILE - 1) / RIGHT_TILE, in_product = number - product.first_block;
    return {index, in_product / columns * LEFT_TILE, in_product % columns * RIGHT_TILE};
}

// What comes after each other in a ring: the pieces of all tasks of a block.
struct Walk {
    const AllProducts& all;
    u32 pieces;
    u32 number;
    u32 piece;
    Task task;

    __device__ __forceinline__ Walk(const AllProducts& all, u32 pieces)
        : all(all), pieces(pieces), number(blockIdx.x), piece(0), task(task_of(all, number)) {}
    __device__ __forceinline__ bool is_left() const { return number < all.tiles; }
    __device__ __forceinline__ void advance() {
        piece++;
        if (piece < pieces) return;
        piece = 0;
        number += gridDim.x;
        if (number < all.tiles) task = task_of(all, number);
    }
    __device__ __forceinline__ void fetch_left(const Rings& rings, u32 stage) const {
        const Shared there = rings.left_there(stage);
        barrier_expect(there, LEFT_BYTES);
#pragma unroll
        for (u32 i = 0; i < LEFT_PANELS; i++) {
            piece_begin(rings.left(stage) + i * PANEL_OF_PIECE, all.factors[task.product].left, task.m + i * 32,
                        piece * PIECE_DEPTH, 0, there);
        }
    }
    __device__ __forceinline__ void fetch_right(const Rings& rings, u32 stage) const {
        const Shared there = rings.raw_there(stage);
        barrier_expect(there, RIGHT_BYTES);
#pragma unroll
        for (u32 i = 0; i < RIGHT_PANELS; i++) {
            piece_begin(rings.raw(stage) + i * PANEL_OF_PIECE, all.factors[task.product].right, task.n + i * 32,
                        piece * PIECE_DEPTH, 0, there);
        }
    }
};

typedef u32 Left[STEPS_OF_PIECE][4];

// Where a lane finds its numbers of a left piece: rows g and g + 8 of its warp's 16, of the even and the odd depth of a step.
struct Places {
    Shared at[4];

    __device__ __forceinline__ Places() {
        const u32 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 depth = 2 * t + i / 2, chunk = warp % 2 * 4 + i % 2 * 2 + g / 4;
            at[i] = warp / 2 * PANEL_OF_PIECE + depth * 128 + (chunk ^ depth) * 16 + g % 4 * 4;
        }
    }
};

// A task's pieces, by a group that has 64 of its m.
struct Computation {
    const Rings& rings;
    const Places& places;
    Sums sums;
    float bias[2];
    u32 before;

    // Reads a piece's left factor while the products of the piece before are made, and begins its own. That sums for a bias
    // read it first, wanted or not, keeps the assembler from making one product after the other (tile.cuh).
    __device__ __forceinline__ void add_piece(Left& left, Turn<STAGES>& turn, bool is_first) {
        const Shared from = rings.left(turn.stage), right = rings.turned(turn.stage);
        barrier_wait(rings.left_there(turn.stage), turn.parity);
#pragma unroll
        for (u32 step = 0; step < STEPS_OF_PIECE; step++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) left[step][i] = load_shared(from + places.at[i] + step * 1024);
        }
#pragma unroll
        for (u32 step = 0; step < STEPS_OF_PIECE; step++) {
#pragma unroll
            for (u32 i = 0; i < 2; i++) bias[i] += as_float(left[step][i]) + as_float(left[step][i + 2]);
        }
        barrier_wait(rings.turned_there(turn.stage), turn.parity);
        group_fence();
#pragma unroll
        for (u32 step = 0; step < STEPS_OF_PIECE; step++) group_add_tf32(sums, left[step], right, step);
        group_commit();
        group_wait_but<1>();
        // The piece before is done with.
        if (!is_first && threadIdx.x % 32 == 0) barrier_arrive(rings.done(before));
        before = turn.stage;
        turn.advance();
    }
};

__device__ __forceinline__ void compute_all(const Rings& rings, const AllProducts& all, u32 pieces) {
    const Places places;
    Computation own{rings, places};
    Turn<STAGES> turn;
    const u32 group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll 1
    for (u32 number = blockIdx.x; number < all.tiles; number += gridDim.x) {
        set_zero(own.sums);
        own.bias[0] = own.bias[1] = 0.0f;
        // Two sets of registers, since products read one while the other is loaded.
        Left first, second;
#pragma unroll 1
        for (u32 piece = 0; piece < pieces; piece += 2) {
            own.add_piece(first, turn, piece == 0);
            if (piece + 1 < pieces) own.add_piece(second, turn, false);
        }
        group_wait_but<0>();
        pin(own.sums);
        if (threadIdx.x % 32 == 0) barrier_arrive(rings.done(own.before));
        const Task task = task_of(all, number);
        const Product& product = all.at[task.product];
        const u32 m = task.m + group * 64 + warp * 16 + g;
        if (product.bias && task.n == 0) {
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                own.bias[i] += __shfl_xor_sync(0xFFFFFFFFu, own.bias[i], 1);
                own.bias[i] += __shfl_xor_sync(0xFFFFFFFFu, own.bias[i], 2);
            }
        }
        // A group has whole rows or none.
        if (m >= product.m_end) continue;
        store_sums(own.sums, product, m, task.n + 2 * t);
        if (product.bias && task.n == 0 && t == 0) {
            put(product.bias + m, own.bias[0], product.adds);
            put(product.bias + m + 8, own.bias[1], product.adds);
        }
    }
}

extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1)
    depth_wide(const __grid_constant__ AllProducts all) {
    DYNAMIC_SHARED(shared);
    // From a multiple of 1024 on, since there is no other shared memory.
    const Rings rings{shared_address(shared)};
    const u32 pieces = (all.rows + PIECE_DEPTH - 1) / PIECE_DEPTH;
    if (threadIdx.x == COMPUTE_THREADS) set_barriers(rings);
    __syncthreads();
    if (__shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0) == GROUPS) {
        registers_give<TURNING_REGISTERS>();
        turn_all<true>(rings, Walk(all, pieces));
    } else {
        registers_take<REGISTERS>();
        compute_all(rings, all, pieces);
    }
}
