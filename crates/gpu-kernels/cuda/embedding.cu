// Token and position tables: the look-up, and the gradients of both tables. Launched by
// src/embedding.rs.
//
//   out[b, t] = table[token[b, t]] + positions[t], or of one token at one position
//   d_table[token[b, t]] += d_out[b, t]          d_positions[t] = sum_b d_out[b, t]
//
// Without atomic additions: `embedding_sort` and `embedding_rank` sort the places of the tokens by id and, for equal
// ids, by place, and say of the first of each id how many there are: runs of RUN places are sorted by themselves, and each
// place then looks up in every run how many come before it. `embedding_backward` gives each id that occurs to one block, whose groups of threads add
// up every GROUPS-th of its rows in order, and then the groups in order. Tables are f32 [V, C] and
// [context, C].
//
// Grids, in blocks of THREADS: `embedding_sort`, a block of RUN threads a run; `embedding_rank`, a thread a place;
// `embedding_backward`, a block a place in the sorted order, and then those of the positions; all others, and these, threads that
// stride over the pieces of rows.
// `embedding_forward_one` reads the token and its position from `tokens`; one block.
//
// Defines: THREADS, CHANNELS, VECTOR, RUN (a power of two), ACTIVATION_BYTES.

#include "numbers.cuh"

static constexpr u32 PIECES = CHANNELS / VECTOR;
// Groups of threads that go through the rows of an id, each a thread for every piece.
static constexpr u32 GROUPS = PIECES < THREADS ? THREADS / PIECES : 1;
// Channels of a thread in the end.
static constexpr u32 CHANNELS_OF_THREAD = (CHANNELS + THREADS - 1) / THREADS;
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
    // Ids and places, each run sorted.
    u32* run_tokens;
    u32* run_places;
    const u32* tokens;
    u32 rows;
};

struct Gradients {
    float* d_table;
    float* d_positions;
    const Stored* d_out;
    const u32* tokens;
    const u32* order;
    const u32* counts;
    u32 rows;
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

extern "C" __global__ void __launch_bounds__(RUN, 1)
    embedding_sort(const __grid_constant__ Rank rank) {
    // An id, and its place below it; what is not there comes last.
    __shared__ u64 keys[RUN];
    const u32 i = threadIdx.x, place = blockIdx.x * RUN + i;
    const bool is_there = place < rank.rows;
    keys[i] = is_there ? (u64)rank.tokens[place] << 32 | place : ~(u64)0;
    // Sequences that ascend and then descend become sorted ones twice as long.
    for (u32 length = 2; length <= RUN; length *= 2) {
        for (u32 distance = length / 2; distance > 0; distance /= 2) {
            __syncthreads();
            const u32 other = i ^ distance;
            if (other < i) continue;
            const u64 low = keys[i], high = keys[other];
            if ((low > high) == ((i & length) == 0)) {
                keys[i] = high;
                keys[other] = low;
            }
        }
    }
    __syncthreads();
    if (is_there) {
        rank.run_tokens[place] = (u32)(keys[i] >> 32);
        rank.run_places[place] = (u32)keys[i];
    }
}

// How many of a run, sorted, are below `token`, or not above it.
template <bool OR_EQUAL>
__device__ __forceinline__ u32 count_below(const u32* run, u32 length, u32 token) {
    u32 low = 0, high = length;
    while (low < high) {
        const u32 middle = (low + high) / 2;
        const bool is_below = OR_EQUAL ? run[middle] <= token : run[middle] < token;
        low = is_below ? middle + 1 : low;
        high = is_below ? high : middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    embedding_rank(const __grid_constant__ Rank rank) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= rank.rows) return;
    const u32 token = rank.run_tokens[i];
    u32 less = 0, same = 0, earlier = 0;
    for (u32 start = 0; start < rank.rows; start += RUN) {
        const u32 length = min(rank.rows - start, (u32)RUN);
        const u32 below = count_below<false>(rank.run_tokens + start, length, token);
        const u32 equal = count_below<true>(rank.run_tokens + start, length, token) - below;
        less += below;
        same += equal;
        if (start + length <= i) {
            earlier += equal;
        } else if (start <= i) {
            earlier += i - start - below;
        }
    }
    rank.order[less + earlier] = rank.run_places[i];
    rank.counts[less + earlier] = earlier == 0 ? same : 0;
}

// The rows of an id, which begin at a place in the sorted order, if any does. What does not depend on each other is on its way
// at once: a block does little but wait.
__device__ __forceinline__ void backward_table(const Gradients& gradient, u32 first,
                                               float (&shared)[GROUPS][CHANNELS]) {
    const u32 group = threadIdx.x / GROUP_THREADS;
    const u32 count = gradient.counts[first], place_of_first = gradient.order[first];
    // The same for all threads of the block.
    if (count == 0) return;
    const u32 end = first + count;
    float* const own = gradient.d_table + (u64)gradient.tokens[place_of_first] * CHANNELS;
    float before[CHANNELS_OF_THREAD];
#pragma unroll
    for (u32 k = 0; k < CHANNELS_OF_THREAD; k++) {
        const u32 c = threadIdx.x + k * THREADS;
        before[k] = c < CHANNELS ? own[c] : 0.0f;
    }
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
#pragma unroll
    for (u32 k = 0; k < CHANNELS_OF_THREAD; k++) {
        const u32 c = threadIdx.x + k * THREADS;
        if (c >= CHANNELS) continue;
        float sum = before[k];
        for (u32 g = 0; g < GROUPS && first + g < end; g++) sum += shared[g][c];
        own[c] = sum;
    }
}

__device__ __forceinline__ void backward_positions(const Gradients& gradient, u32 block, u32 blocks) {
    const u64 pieces = (u64)gradient.context * PIECES;
    const u64 stride = (u64)blocks * THREADS;
    for (u64 i = (u64)block * THREADS + threadIdx.x; i < pieces; i += stride) {
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

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    embedding_backward(const __grid_constant__ Gradients gradient) {
    alignas(16) __shared__ float shared[GROUPS][CHANNELS];
    if (blockIdx.x < gradient.rows) {
        backward_table(gradient, blockIdx.x, shared);
    } else {
        backward_positions(gradient, blockIdx.x - gradient.rows, gridDim.x - gradient.rows);
    }
}
