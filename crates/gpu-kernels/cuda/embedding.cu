// Token and position tables: the look-up, and the gradients of both tables. Launched by
// src/embedding.rs.
//
//   out[b, t] = table[token[b, t]] + positions[t], or of one token at one position
//   d_table[token[b, t]] += d_out[b, t]          d_positions[t] = sum_b d_out[b, t]
//
// Without atomic additions: `embedding_rank` sorts the places of the tokens by id and, for equal
// ids, by place, and says of the first of each id how many there are; each place counts those before
// it. `embedding_backward_table` gives each id that occurs to one block, whose groups of threads add
// up every GROUPS-th of its rows in order, and then the groups in order. Tables are f32 [V, C] and
// [context, C].
//
// Grids, in blocks of THREADS: `embedding_rank`, a warp for every RANKS_OF_WARP places;
// `embedding_backward_table`, a block a place in the sorted order, striding; all others, threads that stride over the pieces of rows.
// `embedding_forward_one` reads the token and its position from `tokens`; one block.
//
// Defines: THREADS, CHANNELS, VECTOR, RANKS_OF_WARP, ACTIVATION_BYTES.

#include "numbers.cuh"

static constexpr u32 PIECES = CHANNELS / VECTOR;
// Groups of threads that go through the rows of an id, each a thread for every piece.
static constexpr u32 GROUPS = PIECES < THREADS ? THREADS / PIECES : 1;
static constexpr u32 GROUP_THREADS = THREADS / GROUPS;

struct Lookup {
    Stored* out;
    const u32* tokens;
    const float* table;
    const float* positions;
    u32 rows;
    u32 time;
};

struct Rank {
    // Sorted places, and beside the first place of each id how many there are; 0 beside others.
    u32* order;
    u32* counts;
    const u32* tokens;
    u32 rows;
};

struct TableGradient {
    float* d_table;
    const Stored* d_out;
    const u32* tokens;
    const u32* order;
    const u32* counts;
    u32 rows;
};

struct PositionGradient {
    float* d_positions;
    const Stored* d_out;
    u32 batch;
    u32 time;
    u32 context;
    u32 adds;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    embedding_forward(const __grid_constant__ Lookup lookup) {
    const u64 pieces = (u64)lookup.rows * PIECES;
    const u64 stride = (u64)gridDim.x * THREADS;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < pieces; i += stride) {
        const u32 row = (u32)(i / PIECES), channel = (u32)(i % PIECES) * VECTOR;
        const u64 token = lookup.tokens[row];
        const u64 position = row % lookup.time;
        auto out = load_numbers<VECTOR>(lookup.table + token * CHANNELS + channel);
        const auto at = load_numbers<VECTOR>(lookup.positions + position * CHANNELS + channel);
#pragma unroll
        for (u32 k = 0; k < VECTOR; k++) out.at[k] += at.at[k];
        store_numbers<VECTOR>(lookup.out + (u64)row * CHANNELS + channel, out);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    embedding_forward_one(const __grid_constant__ Lookup lookup) {
    const float* token = lookup.table + (u64)lookup.tokens[0] * CHANNELS;
    const float* position = lookup.positions + (u64)lookup.tokens[1] * CHANNELS;
    for (u32 c = threadIdx.x; c < CHANNELS; c += THREADS) {
        narrow_to(lookup.out[c], token[c] + position[c]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    embedding_rank(const __grid_constant__ Rank rank) {
    const u32 lane = threadIdx.x % WARP_LANES;
    const u32 first =
        (blockIdx.x * (THREADS / WARP_LANES) + threadIdx.x / WARP_LANES) * RANKS_OF_WARP;
    u32 tokens[RANKS_OF_WARP], before[RANKS_OF_WARP] = {}, equal[RANKS_OF_WARP] = {},
                               equal_before[RANKS_OF_WARP] = {};
#pragma unroll
    for (u32 k = 0; k < RANKS_OF_WARP; k++) {
        tokens[k] = first + k < rank.rows ? rank.tokens[first + k] : 0;
    }
#pragma unroll 4
    for (u32 other = lane; other < rank.rows; other += WARP_LANES) {
        const u32 token = rank.tokens[other];
#pragma unroll
        for (u32 k = 0; k < RANKS_OF_WARP; k++) {
            before[k] += token < tokens[k];
            equal[k] += token == tokens[k];
            equal_before[k] += token == tokens[k] && other < first + k;
        }
    }
#pragma unroll
    for (u32 k = 0; k < RANKS_OF_WARP; k++) {
        const u32 less = __reduce_add_sync(0xFFFFFFFFu, before[k]);
        const u32 same = __reduce_add_sync(0xFFFFFFFFu, equal[k]);
        const u32 earlier = __reduce_add_sync(0xFFFFFFFFu, equal_before[k]);
        if (lane == 0 && first + k < rank.rows) {
            rank.order[less + earlier] = first + k;
            rank.counts[less + earlier] = earlier == 0 ? same : 0;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    embedding_backward_table(const __grid_constant__ TableGradient gradient) {
    alignas(16) __shared__ float shared[GROUPS][CHANNELS];
    const u32 group = threadIdx.x / GROUP_THREADS;
    for (u32 first = blockIdx.x; first < gradient.rows; first += gridDim.x) {
        const u32 end = first + gradient.counts[first];
        // The same for all threads of the block.
        if (end == first) continue;
        const u64 token = gradient.tokens[gradient.order[first]];
        if (group < GROUPS) {
            for (u32 piece = threadIdx.x % GROUP_THREADS; piece < PIECES; piece += GROUP_THREADS) {
                Numbers<VECTOR> sum = {};
#pragma unroll 8
                for (u32 place = first + group; place < end; place += GROUPS) {
                    const u64 row = gradient.order[place];
                    const auto d_out =
                        load_numbers<VECTOR>(gradient.d_out + row * CHANNELS + piece * VECTOR);
#pragma unroll
                    for (u32 k = 0; k < VECTOR; k++) sum.at[k] += d_out.at[k];
                }
                store_numbers<VECTOR>(shared[group] + piece * VECTOR, sum);
            }
        }
        __syncthreads();
        for (u32 c = threadIdx.x; c < CHANNELS; c += THREADS) {
            float sum = gradient.d_table[token * CHANNELS + c];
            for (u32 g = 0; g < GROUPS && first + g < end; g++) sum += shared[g][c];
            gradient.d_table[token * CHANNELS + c] = sum;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    embedding_backward_positions(const __grid_constant__ PositionGradient gradient) {
    const u64 pieces = (u64)gradient.context * PIECES;
    const u64 stride = (u64)gridDim.x * THREADS;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < pieces; i += stride) {
        const u32 position = (u32)(i / PIECES), channel = (u32)(i % PIECES) * VECTOR;
        float* at = gradient.d_positions + (u64)position * CHANNELS + channel;
        Numbers<VECTOR> sum = {};
        if (position < gradient.time) {
#pragma unroll 4
            for (u32 window = 0; window < gradient.batch; window++) {
                const u64 row = (u64)window * gradient.time + position;
                const auto d_out = load_numbers<VECTOR>(gradient.d_out + row * CHANNELS + channel);
#pragma unroll
                for (u32 k = 0; k < VECTOR; k++) sum.at[k] += d_out.at[k];
            }
        }
        if (gradient.adds) {
            const auto before = load_numbers<VECTOR>(at);
#pragma unroll
            for (u32 k = 0; k < VECTOR; k++) sum.at[k] += before.at[k];
        }
        store_numbers<VECTOR>(at, sum);
    }
}
