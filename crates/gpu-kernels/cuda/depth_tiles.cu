// Products over the rows of two activations, of several pairs of them: the gradients of weights, on devices of compute
// capability 9.0. Launched by src/depth_tiles.rs.
//
//   out[m, n] = sum over rows of left[row, m] right[row, n]        bias[m] = sum over rows of left[row, m]
//
// left [rows, M], right [rows, N], of bf16; out, of f32, lies by its rows or by its columns. Both are stored or added to.
//
// Grid: a block of DEPTH_THREADS for every LEFT_TILE x RIGHT_TILE of the outputs of one product after the other, those
// of the same m side by side. A multiprocessor has room for one block and nothing beside it: what runs elsewhere on the
// device has its multiprocessors to itself.
//
// One warp fetches, a group of four warps has 64 of the block's m each. Pieces of 64 rows come by the copy engine into
// a ring of STAGES places and are multiplied as they lie, across their rows. Sums are in ascending rows. Those of a
// bias are products with ones.
//
// Shared memory: the ring from a multiple of 1024 on, ones, barriers.
//
// Defines: STAGES, PRODUCTS_MAX, SHARED_BYTES, and those of tile_steps.cuh.

#include "depth_products.cuh"
#include "tile_steps.cuh"

static constexpr u32 GROUPS = 3;
static constexpr u32 LEFT_TILE = GROUPS * TILE;
static constexpr u32 RIGHT_TILE = 160;
static constexpr u32 RIGHT_PIECES = (RIGHT_TILE + TILE - 1) / TILE;
static constexpr u32 COLUMN_STEPS = RIGHT_TILE / 8;
static constexpr u32 COMPUTE_THREADS = GROUPS * TILE_WARPS * 32;
static constexpr u32 DEPTH_THREADS = COMPUTE_THREADS + 32;
static constexpr u32 STAGE_BYTES = (GROUPS + RIGHT_PIECES) * PIECE_BYTES;
static constexpr u32 ONES_BYTES = 1024;
static_assert(ACTIVATION_BYTES == 2, "tf32 is multiplied along rows only");
static_assert(SHARED_BYTES >= 1024 + STAGES * STAGE_BYTES + ONES_BYTES + STAGES * 16, "room for everything");

// Where a block stands, and its parts of shared memory.
struct Block {
    Shared ring;
    u32 m;
    u32 n;
    // Groups that have some m.
    u32 groups;
    u32 right_pieces;

    __device__ __forceinline__ Shared left(u32 stage, u32 group) const {
        return ring + stage * STAGE_BYTES + group * PIECE_BYTES;
    }
    __device__ __forceinline__ Shared right(u32 stage, u32 piece) const { return left(stage, GROUPS + piece); }
    __device__ __forceinline__ Shared ones() const { return ring + STAGES * STAGE_BYTES; }
    __device__ __forceinline__ Shared there(u32 stage) const { return ones() + ONES_BYTES + stage * 16; }
    __device__ __forceinline__ Shared done(u32 stage) const { return there(stage) + 8; }
};

__device__ __forceinline__ Block block_of(const Product& product, Shared shared) {
    Block block;
    block.ring = (shared + 1023u) & ~1023u;
    const u32 columns = (product.n_end + RIGHT_TILE - 1) / RIGHT_TILE, index = blockIdx.x - product.first_block;
    block.m = index / columns * LEFT_TILE;
    block.n = index % columns * RIGHT_TILE;
    block.groups = min(GROUPS, (product.m_end - block.m + TILE - 1) / TILE);
    block.right_pieces = min(RIGHT_PIECES, (product.n_end - block.n + TILE - 1) / TILE);
    return block;
}

// Fetches all pieces, by one thread.
__device__ __forceinline__ void fetch(const Block& block, const Factors& factors, u32 pieces) {
    u32 stage = 0, parity = 1;
#pragma unroll 1
    for (u32 piece = 0; piece < pieces; piece++) {
        const Shared there = block.there(stage);
        if (piece >= STAGES) barrier_wait(block.done(stage), parity);
        barrier_expect(there, (block.groups + block.right_pieces) * PIECE_BYTES);
#pragma unroll
        for (u32 i = 0; i < RIGHT_PIECES; i++) {
            if (i < block.right_pieces) {
                piece_begin(block.right(stage, i), factors.right, block.n + i * TILE, piece * TILE, there);
            }
        }
#pragma unroll
        for (u32 i = 0; i < GROUPS; i++) {
            if (i < block.groups) {
                piece_begin(block.left(stage, i), factors.left, block.m + i * TILE, piece * TILE, there);
            }
        }
        stage++;
        if (stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
}

// Of a factor that lies across its depth and has pieces of 64 beside each other.
__device__ __forceinline__ u64 pieces_at(Shared address) {
    constexpr u64 BESIDE = (u64)(PIECE_BYTES >> 4) << 16;
    return (tile_at(address) & ~((u64)0x3FFF << 16)) | BESIDE;
}

// sums += the 64 columns of `left` times the 160 of `right` in 16 of their rows; `adds` or without what was there.
__device__ __forceinline__ void wide_step(float (&sums)[COLUMN_STEPS][4], u64 left, u64 right, u32 adds) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %82, 0; wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 "
                 GROUP_NAMES_160 "%80, %81, p, 1, 1, 1, 1;}"
                 : GROUP_SUMS_160(GROUP_ADD) : "l"(left), "l"(right), "r"(adds));
}

// The same with eight columns of ones, which lie in any way.
__device__ __forceinline__ void ones_step(float (&sums)[4], u64 left, u64 ones, u32 adds) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %6, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3}, %4, %5, p, 1, 1, 1, 0;}"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "l"(left), "l"(ones), "r"(adds));
}

__device__ __forceinline__ void pin(float (&sums)[4]) {
    asm volatile("" : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) : : "memory");
}

// The product of a group's 64 m and the block's n, and the sums for a bias if wanted.
template <bool WITH_BIAS>
__device__ __forceinline__ void compute(float (&sums)[COLUMN_STEPS][4], float (&bias)[4], const Block& block,
                                        u32 group, u32 pieces) {
#pragma unroll
    for (u32 i = 0; i < COLUMN_STEPS; i++) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
    bias[0] = bias[1] = bias[2] = bias[3] = 0.0f;
    pin(sums);
    pin(bias);
    u32 stage = 0, parity = 0, before = 0;
#pragma unroll 1
    for (u32 piece = 0; piece < pieces; piece++) {
        barrier_wait(block.there(stage), parity);
        group_fence();
        const u64 left = tile_at(block.left(stage, group)), right = pieces_at(block.right(stage, 0));
#pragma unroll
        for (u32 step = 0; step < TILE / 16; step++) {
            // 16 rows of 128 bytes, in units of 16 bytes.
            wide_step(sums, left + step * 128, right + step * 128, piece + step);
            if (WITH_BIAS) ones_step(bias, left + step * 128, tile_at(block.ones()), piece + step);
        }
        group_commit();
        group_wait_but<1>();
        // The piece before is done with.
        if (piece > 0 && threadIdx.x % 32 == 0) barrier_arrive(block.done(before));
        before = stage;
        stage++;
        if (stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    group_wait();
    pin(sums);
    pin(bias);
}

extern "C" __global__ void __launch_bounds__(DEPTH_THREADS, 1)
    depth_tiles(const __grid_constant__ AllProducts all) {
    DYNAMIC_SHARED(shared);
    u32 index = 0;
#pragma unroll
    for (u32 i = 1; i < PRODUCTS_MAX; i++) {
        if (i < all.count && all.at[i].first_block <= blockIdx.x) index = i;
    }
    const Product& product = all.at[index];
    const Block block = block_of(product, shared_address(shared));
    const u32 warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), group = warp / TILE_WARPS;
    const u32 pieces = (all.rows + TILE - 1) / TILE;
    const bool with_bias = product.bias && block.n == 0;
    if (threadIdx.x == COMPUTE_THREADS) {
#pragma unroll
        for (u32 stage = 0; stage < STAGES; stage++) {
            barrier_set(block.there(stage), 1);
            barrier_set(block.done(stage), block.groups * TILE_WARPS);
        }
        barriers_publish();
    }
    if (with_bias && threadIdx.x < ONES_BYTES / 4) {
        asm volatile("st.shared.u32 [%0], %1;" : : "r"(block.ones() + threadIdx.x * 4), "r"(0x3F803F80u) : "memory");
        group_publish();
    }
    __syncthreads();
    if (group == GROUPS) {
        if (threadIdx.x % 32 == 0) fetch(block, all.factors[index], pieces);
        return;
    }
    if (group >= block.groups) return;
    float sums[COLUMN_STEPS][4], bias[4];
    if (with_bias) {
        compute<true>(sums, bias, block, group, pieces);
    } else {
        compute<false>(sums, bias, block, group, pieces);
    }
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const u32 m = block.m + group * TILE + warp % TILE_WARPS * 16 + g;
    store_sums(sums, product, m, block.n + 2 * t);
    if (with_bias && t == 0) {
        put(product.bias + m, bias[0], product.adds);
        put(product.bias + m + 8, bias[2], product.adds);
    }
}
