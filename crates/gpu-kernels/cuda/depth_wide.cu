// Products over the rows of two activations of f32, multiplied as tf32, of several pairs of them: the gradients of
// weights, on devices of compute capability 9.0. What they are: depth_products.cuh. Launched by src/depth_tiles.rs.
//
//   out[m, n] = sum over rows of left[row, m] right[row, n]        bias[m] = sum over rows of left[row, m]
//
// A task is LEFT_TILE x RIGHT_TILE of the outputs of one product after the other, those of the same m side by side. Sums are
// in ascending order of pieces of 32 rows, those of a bias of what products saw, each lane's first.
//
// The instruction takes right factors along their depth only, and left ones from registers in any way. So three
// groups of four warps read 64 of the task's m each across the rows, and a fourth group turns the right factor into
// a ring of its own, once for all three. Of eight rows a turned tile has the even ones first (attention_wide.cuh), and what
// lanes read of the left factor in that order lies in different banks. The fourth group's first thread fetches.
//
// Grid: any number of blocks of DEPTH_THREADS, which go through the tasks. A multiprocessor has room for one block and
// nothing beside it: what runs elsewhere on the device has its multiprocessors to itself.
//
// Shared memory, from a multiple of 1024 on: rings of left, turned and right pieces, barriers.
//
// Defines: STAGES (of left and turned pieces), RAW_STAGES, PRODUCTS_MAX, SHARED_BYTES; REGISTERS and TURNING_REGISTERS of a
// thread; FOUR_WARPS, for the device.

#include "depth_products.cuh"
#include "wgmma_tf32.cuh"

static constexpr u32 GROUPS = 3;
static constexpr u32 PIECE_ROWS = 32;
static constexpr u32 LEFT_PANELS = GROUPS * 2;
static constexpr u32 RIGHT_PANELS = 5;
static constexpr u32 PIECE_BYTES = PIECE_ROWS * 128;
static constexpr u32 LEFT_TILE = LEFT_PANELS * 32;
static constexpr u32 RIGHT_TILE = RIGHT_PANELS * 32;
static constexpr u32 LEFT_BYTES = LEFT_PANELS * PIECE_BYTES;
static constexpr u32 RIGHT_BYTES = RIGHT_PANELS * PIECE_BYTES;
static constexpr u32 COLUMN_STEPS = RIGHT_TILE / 8;
static constexpr u32 STEPS_OF_PIECE = PIECE_ROWS / 8;
static constexpr u32 COMPUTE_THREADS = GROUPS * 128;
static constexpr u32 DEPTH_THREADS = COMPUTE_THREADS + 128;
static_assert(ACTIVATION_BYTES == 4, "depth_tiles.cu has bf16");
static_assert(SHARED_BYTES >= STAGES * (LEFT_BYTES + RIGHT_BYTES) + RAW_STAGES * RIGHT_BYTES + STAGES * 24 + RAW_STAGES * 8,
              "room for everything");

struct Rings {
    Shared base;

    __device__ __forceinline__ Shared left(u32 stage) const { return base + stage * LEFT_BYTES; }
    __device__ __forceinline__ Shared turned(u32 stage) const {
        return base + STAGES * LEFT_BYTES + stage * RIGHT_BYTES;
    }
    __device__ __forceinline__ Shared raw(u32 stage) const { return turned(STAGES) + stage * RIGHT_BYTES; }
    __device__ __forceinline__ Shared left_there(u32 stage) const { return raw(RAW_STAGES) + stage * 24; }
    __device__ __forceinline__ Shared turned_there(u32 stage) const { return left_there(stage) + 8; }
    // Of a left and a turned piece.
    __device__ __forceinline__ Shared done(u32 stage) const { return left_there(stage) + 16; }
    __device__ __forceinline__ Shared raw_there(u32 stage) const { return left_there(STAGES) + stage * 8; }
};

// A place in a ring of COUNT, and which time around it is.
template <u32 COUNT>
struct Turn {
    u32 stage = 0;
    u32 parity = 0;

    __device__ __forceinline__ void advance() {
        stage++;
        if (stage == COUNT) {
            stage = 0;
            parity ^= 1;
        }
    }
};

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
    u32 number;
    u32 piece;
    Task task;

    __device__ __forceinline__ Walk(const AllProducts& all) : number(blockIdx.x), piece(0) {
        task = task_of(all, number);
    }
    __device__ __forceinline__ bool is_left(const AllProducts& all) const { return number < all.tasks; }
    __device__ __forceinline__ void advance(const AllProducts& all, u32 pieces) {
        piece++;
        if (piece == pieces) {
            piece = 0;
            number += gridDim.x;
            if (number < all.tasks) task = task_of(all, number);
        }
    }
};

__device__ __forceinline__ void fetch_left(const Rings& rings, u32 stage, const AllProducts& all, const Walk& walk) {
    const Shared there = rings.left_there(stage);
    barrier_expect(there, LEFT_BYTES);
#pragma unroll
    for (u32 i = 0; i < LEFT_PANELS; i++) {
        piece_begin(rings.left(stage) + i * PIECE_BYTES, all.factors[walk.task.product].left, walk.task.m + i * 32,
                    walk.piece * PIECE_ROWS, 0, there);
    }
}
__device__ __forceinline__ void fetch_raw(const Rings& rings, u32 stage, const AllProducts& all, const Walk& walk) {
    const Shared there = rings.raw_there(stage);
    barrier_expect(there, RIGHT_BYTES);
#pragma unroll
    for (u32 i = 0; i < RIGHT_PANELS; i++) {
        piece_begin(rings.raw(stage) + i * PIECE_BYTES, all.factors[walk.task.product].right, walk.task.n + i * 32,
                    walk.piece * PIECE_ROWS, 0, there);
    }
}

// Turns 32 rows of the right factor, by the fourth group. Each thread turns 4 x 4 numbers at a time, as in
// attention_wide.cuh: of every panel of 32 columns, two warps have a half each.
__device__ __forceinline__ void turn_piece(Shared to, Shared from) {
    const u32 warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, quad = lane % 8;
    // Four columns of the turned tile: every second one of eight rows.
    const u32 columns = quad / 2 ^ (warp % 2 * 4 + lane / 8);
    const u32 first = columns / 2 * 8 + columns % 2;
#pragma unroll
    for (u32 panel = 0; panel < RIGHT_PANELS; panel++) {
        if (panel % 2 != warp / 2) continue;
        uint4 rows[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            rows[i] = load_shared_four(from + panel * PIECE_BYTES + exchanged_piece(first + 2 * i, quad));
        }
        const Shared at = to + panel * PIECE_BYTES + quad * 4 * 128;
        const auto place = [&](u32 i) { return at + i * 128 + (columns ^ (quad % 2 * 4 + i)) * 16; };
        store_shared_four(place(0), rows[0].x, rows[1].x, rows[2].x, rows[3].x);
        store_shared_four(place(1), rows[0].y, rows[1].y, rows[2].y, rows[3].y);
        store_shared_four(place(2), rows[0].z, rows[1].z, rows[2].z, rows[3].z);
        store_shared_four(place(3), rows[0].w, rows[1].w, rows[2].w, rows[3].w);
    }
}

// The part of the fourth group: it fetches and turns.
__device__ __forceinline__ void turn_all(const Rings& rings, const AllProducts& all, u32 pieces) {
    const bool is_fetcher = threadIdx.x == COMPUTE_THREADS;
    Walk left(all), raw(all), here(all);
    if (is_fetcher) {
#pragma unroll 1
        for (u32 i = 0; i < RAW_STAGES && raw.is_left(all); i++, raw.advance(all, pieces)) fetch_raw(rings, i, all, raw);
#pragma unroll 1
        for (u32 i = 0; i < STAGES && left.is_left(all); i++, left.advance(all, pieces)) fetch_left(rings, i, all, left);
    }
    Turn<STAGES> turn;
    Turn<RAW_STAGES> from;
#pragma unroll 1
    for (u32 visit = 0; here.is_left(all); visit++, here.advance(all, pieces)) {
        if (visit >= STAGES) {
            barrier_wait(rings.done(turn.stage), turn.parity ^ 1);
            if (is_fetcher) {
                fetch_left(rings, turn.stage, all, left);
                left.advance(all, pieces);
            }
        }
        barrier_wait(rings.raw_there(from.stage), from.parity);
        turn_piece(rings.turned(turn.stage), rings.raw(from.stage));
        group_publish();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(rings.turned_there(turn.stage));
        // Nobody reads the piece any more.
        named_barrier(1, 128);
        if (is_fetcher && raw.is_left(all)) {
            fetch_raw(rings, from.stage, all, raw);
            raw.advance(all, pieces);
        }
        turn.advance();
        from.advance();
    }
}

typedef float Sums[COLUMN_STEPS][4];
typedef u32 Left[STEPS_OF_PIECE][4];

// Where a lane finds its numbers of a left piece: rows g and g + 8 of its warp's 16, of the even and the odd depth of a step.
struct Places {
    Shared at[4];

    __device__ __forceinline__ Places() {
        const u32 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 depth = 2 * t + i / 2, chunk = warp % 2 * 4 + i % 2 * 2 + g / 4;
            at[i] = warp / 2 * PIECE_BYTES + depth * 128 + (chunk ^ depth) * 16 + g % 4 * 4;
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
    for (u32 number = blockIdx.x; number < all.tasks; number += gridDim.x) {
#pragma unroll
        for (u32 i = 0; i < COLUMN_STEPS * 4; i++) own.sums[i / 4][i % 4] = 0.0f;
        own.bias[0] = own.bias[1] = 0.0f;
        pin(own.sums);
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

extern "C" __global__ void __launch_bounds__(DEPTH_THREADS, 1)
    depth_wide(const __grid_constant__ AllProducts all) {
    DYNAMIC_SHARED(shared);
    // From a multiple of 1024 on, since there is no other shared memory.
    const Rings rings{shared_address(shared)};
    const u32 pieces = (all.rows + PIECE_ROWS - 1) / PIECE_ROWS;
    if (threadIdx.x == COMPUTE_THREADS) {
#pragma unroll 1
        for (u32 stage = 0; stage < STAGES; stage++) {
            barrier_set(rings.left_there(stage), 1);
            barrier_set(rings.turned_there(stage), 4);
            barrier_set(rings.done(stage), GROUPS * 4);
        }
#pragma unroll 1
        for (u32 stage = 0; stage < RAW_STAGES; stage++) barrier_set(rings.raw_there(stage), 1);
        barriers_publish();
    }
    __syncthreads();
    if (__shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0) == GROUPS) {
        registers_give<TURNING_REGISTERS>();
        turn_all(rings, all, pieces);
    } else {
        registers_take<REGISTERS>();
        compute_all(rings, all, pieces);
    }
}
