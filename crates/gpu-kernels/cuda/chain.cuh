// A chain of products, each of what became of the one before, by a cluster that keeps 64 rows to itself: from the end
// of a branch through the whole feed-forward branch to what stands before the next attention, forward
// (chain_forward.cu) or backward (chain_backward.cu), on devices of compute capability 9.0.
//
//   first    [rows, 64 FIRST_PIECES] -> [rows, C]    then something of whole rows; none for FIRST_PIECES = 0
//   second   [rows, C] -> [rows, 4 C]                then something of each element
//   third    [rows, 4 C] -> [rows, C]                then something of whole rows
//   last     [rows, C] -> [rows, LAST_TILES C]       none for LAST_TILES = 0
//
// A block of the cluster has 64 columns of the first and third products, 256 of the second, 64 LAST_TILES of the
// last. What became of the first and third products, rows of bf16, it sends to all others: each has its 64 rows
// whole. The hidden columns stay where they are: of the third product every block makes the part whose depth is its
// own hidden columns, for all columns in turn, the next block's first, and sends each part to the block that has
// the columns, which adds up what came to it, that of the block right before it first, with its own part after two.
//
// One warp fetches, two groups of four compute. Pieces of the weights come by the copy engine into a ring of STAGES
// places, without a pause between products. The groups take turns with tiles of 64 x 64: one begins all of its product
// when the other's is nearly begun, so that the tensor cores have the products one after the other, and one group
// ends a tile while the other multiplies.
//
// The kernel may begin before that before it ends (`launch_wait`): what it fetches until then are weights.
//
// Shared memory, SHARED_BYTES from a multiple of 1024 on: the ring; rows [C / 64] tiles; hidden [4] tiles; [C / 64 - 1]
// parts that came, the first of them where the rows are, once no block needs those any more; for each warp a place to
// turn 16 rows in; pairs of numbers of each row that the blocks tell each other; barriers; a word from each block.
// The first product's left factor comes to where rows and what follows them are later. Tiles are pieces of
// tile_steps.cuh; those of rows lie in the order of the blocks from the own one on.
//
// Defines: CHANNELS, FIRST_PIECES, LAST_TILES, COMPUTE_GROUPS, STAGES, SHARED_BYTES, and those of tile_steps.cuh.
#pragma once

#include "cluster.cuh"

static constexpr u32 BLOCKS = CHANNELS / TILE;
static constexpr u32 HIDDEN_TILES = 4;
static constexpr u32 HIDDEN = HIDDEN_TILES * CHANNELS;
static constexpr u32 GROUPS = COMPUTE_GROUPS;
static constexpr u32 GROUP_THREADS = TILE_WARPS * 32;
static constexpr u32 CHAIN_THREADS = GROUPS * GROUP_THREADS + 32;
// The group that ends the third product.
static constexpr u32 LAST_GROUP = BLOCKS % GROUPS;
static_assert(CHANNELS % TILE == 0 && ACTIVATION_BYTES == 2, "whole tiles of bf16");

// Bytes of a part of the third product, and of a warp's share in it; of 16 rows.
static constexpr u32 PART_BYTES = TILE * TILE * 4;
static constexpr u32 WARP_PART_BYTES = PART_BYTES / TILE_WARPS;
static constexpr u32 WARP_ROWS_BYTES = PIECE_BYTES / TILE_WARPS;
// Parts that come to where rows were.
static constexpr u32 PARTS_OVER_ROWS = BLOCKS * PIECE_BYTES / PART_BYTES;
static_assert(PARTS_OVER_ROWS < BLOCKS, "no more than there are parts");

static constexpr u32 ROWS_AT = STAGES * PIECE_BYTES;
static constexpr u32 HIDDEN_AT = ROWS_AT + BLOCKS * PIECE_BYTES;
static constexpr u32 PARTS_AT = HIDDEN_AT + HIDDEN_TILES * PIECE_BYTES;
static constexpr u32 LEFT_AT = PARTS_AT + (BLOCKS - 1 - PARTS_OVER_ROWS) * PART_BYTES;
static constexpr u32 PAIRS_AT = LEFT_AT + GROUPS * TILE_WARPS * WARP_ROWS_BYTES;
static constexpr u32 BARRIERS_AT = PAIRS_AT + BLOCKS * TILE * 8;
static constexpr u32 BARRIERS = 2 * STAGES + HIDDEN_TILES + 2 * BLOCKS + 2 + (BLOCKS - 1) + 1;
static constexpr u32 WORDS_AT = BARRIERS_AT + BARRIERS * 8;
static_assert(SHARED_BYTES >= WORDS_AT + BLOCKS * 4, "room for everything");

static_assert(FIRST_PIECES <= (PAIRS_AT - ROWS_AT) / PIECE_BYTES, "room for the first left factor");

// The pieces in the ring, counted through all products.
static constexpr u32 SECOND_PIECE = FIRST_PIECES;
static constexpr u32 THIRD_PIECE = SECOND_PIECE + HIDDEN_TILES * BLOCKS;
static constexpr u32 LAST_PIECE = THIRD_PIECE + BLOCKS * HIDDEN_TILES;

// Of a tile of the second product and later ones.
static constexpr u32 TILE_PIECES_MAX = BLOCKS > HIDDEN_TILES ? BLOCKS : HIDDEN_TILES;
static_assert(STAGES > TILE_PIECES_MAX, "no product waits for its own pieces");

// Where a thread stands.
struct Chain {
    Shared base;
    u32 tiles;
    u32 rank;
    u32 group;
    // Of the four of its group.
    u32 warp;
    u32 lane;
    u32 g;
    u32 t;
    // The first of its two rows, 8 apart, in the block.
    u32 tile_row;
    u32 first_row;

    // What the tensor cores call the tile that lies so far from the beginning.
    __device__ __forceinline__ u32 tile(u32 at) const { return tiles + at / 16; }
    // A place in the ring.
    __device__ __forceinline__ Shared slot(u32 place) const { return base + place * PIECE_BYTES; }
    __device__ __forceinline__ Shared rows(u32 tile) const { return base + ROWS_AT + tile * PIECE_BYTES; }
    __device__ __forceinline__ Shared hidden(u32 tile) const { return base + HIDDEN_AT + tile * PIECE_BYTES; }
    // The warp's 16 rows of a tile.
    __device__ __forceinline__ Shared of_warp(Shared tile) const { return tile + warp * WARP_ROWS_BYTES; }
    __device__ __forceinline__ Shared left() const {
        return base + LEFT_AT + (group * TILE_WARPS + warp) * WARP_ROWS_BYTES;
    }
    __device__ __forceinline__ Shared part(u32 index) const {
        const u32 at = index < PARTS_OVER_ROWS ? ROWS_AT + index * PART_BYTES
                                               : PARTS_AT + (index - PARTS_OVER_ROWS) * PART_BYTES;
        return base + at + warp * WARP_PART_BYTES;
    }
    __device__ __forceinline__ Shared barrier(u32 index) const { return base + BARRIERS_AT + index * 8; }
    // The piece in a place is there, or done with.
    __device__ __forceinline__ Shared there(u32 place) const { return barrier(place * 2); }
    __device__ __forceinline__ Shared done(u32 place) const { return barrier(place * 2 + 1); }
    __device__ __forceinline__ Shared hidden_there(u32 tile) const { return barrier(2 * STAGES + tile); }
    // Rows of the first and of the third product, in one of their places.
    __device__ __forceinline__ Shared rows_there(u32 which, u32 place) const {
        return barrier(2 * STAGES + HIDDEN_TILES + which * BLOCKS + place);
    }
    __device__ __forceinline__ Shared told(u32 which) const {
        return barrier(2 * STAGES + HIDDEN_TILES + 2 * BLOCKS + which);
    }
    __device__ __forceinline__ Shared part_there(u32 index) const {
        return barrier(2 * STAGES + HIDDEN_TILES + 2 * BLOCKS + 2 + index);
    }
    // No other block needs its rows of the first product any more, and a word for each of them to say so.
    __device__ __forceinline__ Shared rows_done() const { return barrier(BARRIERS - 1); }
    // A piece of the first product's left factor.
    __device__ __forceinline__ Shared first_left(u32 k) const { return base + ROWS_AT + k * PIECE_BYTES; }
    // The block that is next after k others, from this one on; its tile of rows lies in place k.
    __device__ __forceinline__ u32 turned(u32 k) const { return rank + k < BLOCKS ? rank + k : rank + k - BLOCKS; }
    // Columns of the second and the last product, in tiles.
    __device__ __forceinline__ u32 hidden_tile(u32 tile) const { return rank * HIDDEN_TILES + tile; }
    __device__ __forceinline__ u32 last_tile(u32 tile) const { return rank * LAST_TILES + tile; }
    __device__ __forceinline__ Shared word() const { return base + WORDS_AT + rank * 4; }

    __device__ __forceinline__ u32 row() const { return first_row + tile_row; }
    // The first of the thread's columns of a tile.
    __device__ __forceinline__ u32 column(u32 tile) const { return tile * TILE + 2 * t; }
    __device__ __forceinline__ Exchange exchange(u32 which) const {
        return {told(which), base + PAIRS_AT, rank, tile_row, t};
    }
};

__device__ __forceinline__ Chain chain_of_thread(const u8* shared) {
    Chain chain;
    chain.base = shared_address(shared);
    chain.tiles = (u32)tile_at(chain.base);
    const u32 warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    chain.group = warp / TILE_WARPS;
    chain.warp = warp % TILE_WARPS;
    chain.lane = threadIdx.x % 32;
    chain.g = chain.lane / 4;
    chain.t = chain.lane % 4;
    chain.tile_row = chain.warp * 16 + chain.g;
    chain.rank = blockIdx.x % BLOCKS;
    chain.first_row = blockIdx.x / BLOCKS * TILE;
    return chain;
}

// Sets the barriers up, by one thread.
__device__ __forceinline__ void set_barriers(const Chain& chain) {
    if (chain.base % 1024 != 0) __trap();
    for (u32 place = 0; place < STAGES; place++) {
        barrier_set(chain.there(place), 1);
        barrier_set(chain.done(place), TILE_WARPS);
    }
    for (u32 tile = 0; tile < HIDDEN_TILES; tile++) barrier_set(chain.hidden_there(tile), TILE_WARPS);
    for (u32 which = 0; which < 2; which++) {
        const bool are_fetched = which == 0 && FIRST_PIECES == 0;
        for (u32 tile = 0; tile < BLOCKS; tile++) {
            barrier_set(chain.rows_there(which, tile), are_fetched || tile > 0 ? 1 : TILE_WARPS);
        }
        barrier_set(chain.told(which), 1);
    }
    for (u32 index = 0; index + 1 < BLOCKS; index++) barrier_set(chain.part_there(index), 1);
    barrier_set(chain.rows_done(), 1);
    barriers_publish();
    // What comes from other blocks.
    for (u32 which = 0; which < 2; which++) {
        const bool are_fetched = which == 0 && FIRST_PIECES == 0;
        for (u32 tile = 0; tile < BLOCKS; tile++) {
            if (are_fetched || tile > 0) barrier_expect(chain.rows_there(which, tile), PIECE_BYTES);
        }
    }
    for (u32 index = 0; index + 1 < BLOCKS; index++) barrier_expect(chain.part_there(index), PART_BYTES);
    barrier_expect(chain.rows_done(), (BLOCKS - 1) * 4);
}

// Begins to fetch right factors in their order.
struct Fetcher {
    const Chain& chain;
    // The next place in the ring, and how often all have been filled.
    u32 place;
    u32 rounds;

    // A piece, with which other bytes count; says at which barrier.
    __device__ __forceinline__ Shared next(const TensorMap& map, u32 depth_tile, u32 column_tile, u32 more_bytes) {
        const u32 depth = depth_tile * TILE, column = column_tile * TILE;
        if (rounds > 0) barrier_wait(chain.done(place), (rounds - 1) & 1);
        const Shared there = chain.there(place);
        barrier_expect(there, PIECE_BYTES + more_bytes);
        if (RIGHT_TRANSPOSED) {
            piece_begin(chain.slot(place), map, depth, column, there);
        } else {
            piece_begin(chain.slot(place), map, column, depth, there);
        }
        place++;
        if (place == STAGES) {
            place = 0;
            rounds++;
        }
        return there;
    }
};

struct Factors {
    TensorMap left;
    TensorMap first;
    TensorMap second;
    TensorMap third;
    TensorMap last;
};

// Right factors of the first product that are fetched before anything else: no kernel before this one makes weights.
static constexpr u32 EARLY_PIECES = FIRST_PIECES < STAGES ? FIRST_PIECES : STAGES;

// Begins to fetch, by the one thread that set the barriers.
__device__ __forceinline__ void fetch_early(Fetcher& fetcher, const Chain& chain, const Factors& factors) {
#pragma unroll 1
    for (u32 k = 0; k < EARLY_PIECES; k++) fetcher.next(factors.first, k, chain.rank, PIECE_BYTES);
    const TensorMap* const others[] = {&factors.left, &factors.second, &factors.third, &factors.last};
#pragma unroll
    for (u32 i = 0; i < 4; i++) asm volatile("prefetch.tensormap [%0];" : : "l"(others[i]) : "memory");
}

// Fetches the rest, by the same thread.
__device__ __forceinline__ void fetch(Fetcher& fetcher, const Chain& chain, const Factors& factors) {
    launch_wait();
    const auto left = [&](u32 k, u32 tile, Shared there) {
        piece_begin(chain.first_left(k), factors.left, tile * TILE, chain.first_row, there);
    };
    if constexpr (FIRST_PIECES == 0) {
        // Rows come to where they would be made.
#pragma unroll 1
        for (u32 k = 0; k < BLOCKS; k++) left(k, chain.turned(k), chain.rows_there(0, k));
    }
#pragma unroll 1
    for (u32 k = 0; k < EARLY_PIECES; k++) left(k, k, chain.there(k));
#pragma unroll 1
    for (u32 k = EARLY_PIECES; k < FIRST_PIECES; k++) {
        left(k, k, fetcher.next(factors.first, k, chain.rank, PIECE_BYTES));
    }
#pragma unroll 1
    for (u32 tile = 0; tile < HIDDEN_TILES; tile++) {
#pragma unroll 1
        for (u32 k = 0; k < BLOCKS; k++) {
            fetcher.next(factors.second, chain.turned(k), chain.hidden_tile(tile), 0);
        }
    }
#pragma unroll 1
    for (u32 turn = 0; turn < BLOCKS; turn++) {
        const u32 tile = (chain.rank + 1 + turn) % BLOCKS;
#pragma unroll 1
        for (u32 k = 0; k < HIDDEN_TILES; k++) {
            fetcher.next(factors.third, chain.hidden_tile(k), tile, 0);
        }
    }
#pragma unroll 1
    for (u32 tile = 0; tile < LAST_TILES; tile++) {
#pragma unroll 1
        for (u32 k = 0; k < BLOCKS; k++) {
            fetcher.next(factors.last, chain.turned(k), chain.last_tile(tile), 0);
        }
    }
}

// Begins, by all threads; the warp that fetches does so, and has nothing else to do.
__device__ __forceinline__ bool begin(const Chain& chain, const Factors& factors) {
    Fetcher fetcher = {chain, 0, 0};
    const bool fetches = chain.group == GROUPS;
    if (fetches && chain.lane == 0) {
        set_barriers(chain);
        fetch_early(fetcher, chain, factors);
    }
    __syncthreads();
    cluster_arrive();
    if (fetches && chain.lane == 0) fetch(fetcher, chain, factors);
    launch_wait();
    launch_next();
    if (!fetches) return true;
    cluster_wait();
    return false;
}

// To the next place in the ring.
__device__ __forceinline__ void pass(u32& place, u32& parity) {
    place++;
    if (place == STAGES) {
        place = 0;
        parity ^= 1;
    }
}

// Products but the first are begun in the order of their pieces, so that one group multiplies while the other ends a
// tile: the groups take turns.
static constexpr u32 TURNS = HIDDEN_TILES + BLOCKS + LAST_TILES;
static constexpr u32 TURN_BARRIER = 4;
static_assert(GROUPS == 2, "they take turns");
__device__ __forceinline__ void turn_wait(const Chain& chain, u32 turn) {
    if (turn > 0) named_barrier(TURN_BARRIER + chain.group, 2 * GROUP_THREADS);
}
__device__ __forceinline__ void turn_give(const Chain& chain, u32 turn) {
    if (turn + 1 < TURNS) named_arrive(TURN_BARRIER + (chain.group ^ 1), 2 * GROUP_THREADS);
}

__device__ __forceinline__ void set_zero(float (&sums)[8][4]) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
}

// Steps of a product that are multiplied while more are begun.
static constexpr u32 AHEAD = 2;

// The first product, piece by piece as they come.
__device__ __forceinline__ void multiply_first(float (&sums)[8][4], const Chain& chain) {
    set_zero(sums);
    pin(sums);
    u32 place = 0, parity = 0;
    const auto done_with = [&](u32 k) {
        if (chain.lane == 0) barrier_arrive(chain.done(k % STAGES));
    };
#pragma unroll
    for (u32 k = 0; k < FIRST_PIECES; k++) {
        barrier_wait(chain.there(place), parity);
        group_fence();
#pragma unroll
        for (u32 step = 0; step < 4; step++) {
            tile_step_at(sums, chain.tile(ROWS_AT + k * PIECE_BYTES), chain.tile(place * PIECE_BYTES), step, k + step);
        }
        group_commit();
        if (k >= AHEAD) {
            group_wait_but<AHEAD>();
            done_with(k - AHEAD);
        }
        pass(place, parity);
    }
    group_wait_but<0>();
    pin(sums);
#pragma unroll
    for (u32 k = FIRST_PIECES > AHEAD ? FIRST_PIECES - AHEAD : 0; k < FIRST_PIECES; k++) done_with(k);
}

// The product of COUNT left tiles, from `left_at` on, for which there are barriers from `left_there` on, and the pieces
// from `first` on; added to sums if ADDS.
template <u32 COUNT, bool ADDS>
__device__ __forceinline__ void multiply(float (&sums)[8][4], const Chain& chain, u32 left_at, Shared left_there,
                                         u32 first, u32 turn) {
    if (!ADDS) set_zero(sums);
    pin(sums);
    u32 place = first % STAGES, parity = first / STAGES & 1;
    // Places of pieces that are still multiplied with, before that of the next step.
    u32 waiting[AHEAD];
    const auto done_with = [&](u32 place) {
        if (chain.lane == 0) barrier_arrive(chain.done(place));
    };
    turn_wait(chain, turn);
#pragma unroll
    for (u32 k = 0; k < COUNT; k++) {
        barrier_wait(left_there + k * 8, 0);
        barrier_wait(chain.there(place), parity);
        if (k == 0) group_fence();
#pragma unroll
        for (u32 step = 0; step < 4; step++) {
            const u32 left = chain.tile(left_at + k * PIECE_BYTES), right = chain.tile(place * PIECE_BYTES);
            tile_step_at(sums, left, right, step, ADDS ? 1 : k + step);
        }
        group_commit();
        if (k >= AHEAD) {
            group_wait_but<AHEAD>();
            done_with(waiting[k % AHEAD]);
        }
        waiting[k % AHEAD] = place;
        pass(place, parity);
    }
    turn_give(chain, turn);
    group_wait_but<0>();
    pin(sums);
#pragma unroll
    for (u32 k = COUNT > AHEAD ? COUNT - AHEAD : 0; k < COUNT; k++) done_with(waiting[k % AHEAD]);
}

// Rows of the first or third product times a tile from piece `first` on.
__device__ __forceinline__ void multiply_rows(float (&sums)[8][4], const Chain& chain, u32 which, u32 first, u32 turn) {
    multiply<BLOCKS, false>(sums, chain, ROWS_AT, chain.rows_there(which, 0), first, turn);
}
// Tile `tile` of the second product.
__device__ __forceinline__ void multiply_second(float (&sums)[8][4], const Chain& chain, u32 tile) {
    multiply_rows(sums, chain, 0, SECOND_PIECE + tile * BLOCKS, tile);
}
// Tells all other blocks that this one has no need of its rows any more, which is so when all hidden columns are
// there. By four lanes and more.
__device__ __forceinline__ void tell_rows_done(const Chain& chain) {
    if (chain.lane < BLOCKS && chain.lane != chain.rank) {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                     : : "r"(place_of(chain.word(), chain.lane)), "r"(1u),
                         "r"(place_of(chain.rows_done(), chain.lane)) : "memory");
    }
}

// The part of the third product for the block that is next after `turn` others.
template <bool ADDS = false>
__device__ __forceinline__ void multiply_third(float (&sums)[8][4], const Chain& chain, u32 turn) {
    const u32 first = THIRD_PIECE + turn * HIDDEN_TILES;
    multiply<HIDDEN_TILES, ADDS>(sums, chain, HIDDEN_AT, chain.hidden_there(0), first, HIDDEN_TILES + turn);
    if (turn == 0 && chain.warp == 0) tell_rows_done(chain);
}
// Tile `tile` of the last product.
__device__ __forceinline__ void multiply_last(float (&sums)[8][4], const Chain& chain, u32 tile) {
    multiply_rows(sums, chain, 1, LAST_PIECE + tile * BLOCKS, HIDDEN_TILES + BLOCKS + tile);
}

// Begins to copy from this block's shared memory to what is `own` here in another block, and has `barrier` there count it.
__device__ __forceinline__ void send(Shared own, Shared from, u32 bytes, Shared barrier, u32 block) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 : : "r"(place_of(own, block)), "r"(from), "r"(bytes), "r"(place_of(barrier, block)) : "memory");
}
__device__ __forceinline__ void send_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until nothing that this thread sends is read any more.
__device__ __forceinline__ void send_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Leaves 16 rows of a warp, `pair(i, half)` being that of columns 8 i + 2 t of row g + 8 half.
template <class Pairs>
__device__ __forceinline__ void put_rows(Shared to, const Chain& chain, Pairs pair) {
    const u32 row = chain.lane % 8, matrix = chain.lane / 8;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
#pragma unroll
        for (u32 i = 0; i < 8; i += 4) {
            u32 words[4];
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const Pair both = pair(i + k, half);
                words[k] = narrow_two(both.low, both.high);
            }
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                         : : "r"(to + half * 1024 + exchanged_piece(row, i + matrix)), "r"(words[0]), "r"(words[1]),
                             "r"(words[2]), "r"(words[3]) : "memory");
        }
    }
    __syncwarp();
}

// Begins to write 16 rows that a warp has left to the columns of a tile of a matrix, after `group_publish`.
__device__ __forceinline__ void save_rows(const TensorMap& to, Shared from, const Chain& chain, u32 tile) {
    if (chain.lane == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                     : : "l"(&to), "r"(tile * TILE), "r"(chain.first_row + chain.warp * 16), "r"(from) : "memory");
    }
    send_commit();
}

// The same by way of the warp's own place.
template <class Pairs>
__device__ __forceinline__ void store_tile(const TensorMap& to, const Chain& chain, u32 tile, Pairs pair) {
    send_wait();
    __syncwarp();
    put_rows(chain.left(), chain, pair);
    group_publish();
    __syncwarp();
    save_rows(to, chain.left(), chain, tile);
}

// Writes 16 rows that a warp has left such that this block may read them again: no copy engine, but the warp's own
// accesses.
__device__ __forceinline__ void save_visibly(Stored* to, Shared from, const Chain& chain, u32 columns, u32 tile,
                                             u32 rows) {
    uint4 words[4];
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        words[k] = load_shared_four(from + exchanged_piece(chain.lane / 8 + 4 * k, chain.lane % 8));
    }
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        const u32 at = chain.first_row + chain.warp * 16 + chain.lane / 8 + 4 * k;
        const u64 address = (u64)to + ((u64)at * columns + tile * TILE) * sizeof(Stored) + chain.lane % 8 * 16;
        if (at < rows) store(address, words[k]);
    }
}

// Makes a tile of rows one that all blocks have.
template <class Pairs>
__device__ __forceinline__ void share_rows(const Chain& chain, u32 which, Pairs pair) {
    const Shared own = chain.of_warp(chain.rows(0));
    put_rows(own, chain, pair);
    group_publish();
    __syncwarp();
    if (chain.lane == 0) barrier_arrive(chain.rows_there(which, 0));
    // First to the block that needs this tile first.
    if (chain.lane + 1 < BLOCKS) {
        const u32 place = chain.lane + 1;
        send(chain.of_warp(chain.rows(place)), own, WARP_ROWS_BYTES, chain.rows_there(which, place),
             chain.turned(BLOCKS - place));
    }
    send_commit();
}

// Leaves a tile of hidden columns, and writes it. `put` may leave another one in the warp's own place, which is
// published with it.
template <class Pairs, class Put>
__device__ __forceinline__ void leave_hidden(const TensorMap& to, const Chain& chain, u32 tile, Pairs pair, Put put) {
    const Shared own = chain.of_warp(chain.hidden(tile));
    put();
    put_rows(own, chain, pair);
    group_publish();
    __syncwarp();
    if (chain.lane == 0) barrier_arrive(chain.hidden_there(tile));
    save_rows(to, own, chain, chain.hidden_tile(tile));
}

// Sends the part of the third product for the block that is next after `turn` others.
__device__ __forceinline__ void send_part(const float (&sums)[8][4], const Chain& chain, u32 turn) {
    const u32 index = BLOCKS - 2 - turn;
    if (index < PARTS_OVER_ROWS) barrier_wait(chain.rows_done(), 0);
    const u32 block = chain.turned(1 + turn);
    const Shared to = place_of(chain.part(index), block) + chain.lane * 16;
    const Shared barrier = place_of(chain.part_there(index), block);
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        send(to + i * 512, barrier, sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
    }
}

// sums += a part that another block sent.
__device__ __forceinline__ void add_part(float (&sums)[8][4], const Chain& chain, u32 index) {
    barrier_wait(chain.part_there(index), 0);
    const Shared from = chain.part(index) + chain.lane * 16;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const uint4 part = load_shared_four(from + i * 512);
        sums[i][0] += as_float(part.x);
        sums[i][1] += as_float(part.y);
        sums[i][2] += as_float(part.z);
        sums[i][3] += as_float(part.w);
    }
}

// Parts that are there before the last one is made.
static constexpr u32 PARTS_BEFORE = BLOCKS - 1 > 2 ? 2 : BLOCKS - 1;

// All parts of the third product, of which this group makes its own; the last group goes on with the sum, in which parts
// follow each other as they come. `load` is called before the last.
template <class Load>
__device__ __forceinline__ bool third_product(float (&sums)[8][4], const Chain& chain, Load load) {
#pragma unroll 1
    for (u32 turn = (chain.group + GROUPS - 1) % GROUPS; turn + 1 < BLOCKS; turn += GROUPS) {
        multiply_third(sums, chain, turn);
        send_part(sums, chain, turn);
    }
    if (chain.group != LAST_GROUP) return false;
    load();
    set_zero(sums);
#pragma unroll
    for (u32 i = 0; i < PARTS_BEFORE; i++) add_part(sums, chain, BLOCKS - 2 - i);
    multiply_third<true>(sums, chain, BLOCKS - 1);
#pragma unroll
    for (u32 i = PARTS_BEFORE; i + 1 < BLOCKS; i++) add_part(sums, chain, BLOCKS - 2 - i);
    return true;
}
