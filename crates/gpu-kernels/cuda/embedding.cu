// Token and position tables: the look-up, and the gradients of both tables. Launched by
// src/embedding.rs.
//
//   out[b, t] = table[token[b, t]] + positions[t], or of one token at one position
//   d_table[token[b, t]] += d_out[b, t]          d_positions[t] = sum_b d_out[b, t]
//
// Without atomic additions: `embedding_rank` sorts the places of the tokens by id and, for
// equal ids, by place; each place counts those before it. `embedding_backward_table` gives each id
// that occurs to one block, which adds up its rows in order. Tables are f32 [V, C] and [context, C].
//
// Grids, in blocks of THREADS: `embedding_rank`, a thread a token; `embedding_backward_table`, a
// block a place in the sorted order, striding; all others, threads that stride over the pieces of rows.
// `embedding_forward_one` reads the token and its position from `tokens`; one block.
//
// Defines: THREADS, CHANNELS, VECTOR, ACTIVATION_BYTES.

#include "numbers.cuh"

static constexpr u32 PIECES = CHANNELS / VECTOR;

struct Lookup {
    Stored* out;
    const u32* tokens;
    const float* table;
    const float* positions;
    u32 rows;
    u32 time;
};

struct Rank {
    u32* order;
    const u32* tokens;
    u32 rows;
};

struct TableGradient {
    float* d_table;
    const Stored* d_out;
    const u32* tokens;
    const u32* order;
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
    const u32 place = blockIdx.x * THREADS + threadIdx.x;
    if (place >= rank.rows) return;
    const u32 token = rank.tokens[place];
    u32 before = 0;
#pragma unroll 8
    for (u32 other = 0; other < rank.rows; other++) {
        const u32 id = rank.tokens[other];
        before += id < token || (id == token && other < place);
    }
    rank.order[before] = place;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    embedding_backward_table(const __grid_constant__ TableGradient gradient) {
    for (u32 first = blockIdx.x; first < gradient.rows; first += gridDim.x) {
        const u32 token = gradient.tokens[gradient.order[first]];
        if (first > 0 && gradient.tokens[gradient.order[first - 1]] == token) continue;
        u32 end = first + 1;
        while (end < gradient.rows && gradient.tokens[gradient.order[end]] == token) end++;
        for (u32 piece = threadIdx.x; piece < PIECES; piece += THREADS) {
            float* at = gradient.d_table + (u64)token * CHANNELS + piece * VECTOR;
            auto sum = load_numbers<VECTOR>(at);
#pragma unroll 4
            for (u32 place = first; place < end; place++) {
                const u64 row = gradient.order[place];
                const auto d_out =
                    load_numbers<VECTOR>(gradient.d_out + row * CHANNELS + piece * VECTOR);
#pragma unroll
                for (u32 k = 0; k < VECTOR; k++) sum.at[k] += d_out.at[k];
            }
            store_numbers<VECTOR>(at, sum);
        }
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
