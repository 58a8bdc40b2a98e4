// Causal attention in f32 arithmetic, for activations in f32 or bf16 and heads of any size up to a
// limit of shared memory: what src/attention.rs launches for exact products, and for heads that the
// tensor cores of attention_mma_forward.cu do not fit. Formula, statistics and planes: attention.cuh.
//
// A block owns ROWS rows of a head and visits others in rounds, each of its SHARES teams of 128
// threads COLUMNS of them: queries that visit keys, or keys that are visited by queries. A thread
// has ROWS_A_THREAD x COLUMNS_A_THREAD scores in registers, and of the team's sums ROWS_A_THREAD
// rows, of whose channels it has every sixteenth four. The 16 threads of the same rows are half a
// warp, so probabilities pass through shared memory without a barrier of the block. A team sums in
// the order of its rows; at the end the first one puts what the teams found together, in their
// order.
//
// Grid: attention_forward a block for every tile of queries; attention_backward two for every tile,
// one that owns keys (writes d_k, d_v) and one that owns queries (writes d_q). Overwrites all of
// out and statistics, and of d_qkv. Shared memory: SHARED_FLOATS f32, at launch.
//
// Defines beyond attention.cuh: ROWS_A_THREAD, COLUMNS_A_THREAD, SHARES, SHARED_FLOATS.

#define FOLDS_SUM false
#include "attention_planes.cuh"

// Threads that share rows, and the groups of them in a team.
static constexpr u32 LANES_OF_ROW = 16;
static constexpr u32 TEAM = THREADS / SHARES;
static constexpr u32 GROUPS = TEAM / LANES_OF_ROW;
static constexpr u32 R = ROWS_A_THREAD;
static constexpr u32 K = COLUMNS_A_THREAD;
static constexpr u32 ROWS = GROUPS * R;
static constexpr u32 COLUMNS = LANES_OF_ROW * K;
static constexpr u32 ROUND = SHARES * COLUMNS;

// Fours of channels in a row, padded with zeros, and of a thread.
static constexpr u32 QUADS = (HEAD_SIZE + 3) / 4;
static constexpr u32 QUADS_A_THREAD = (QUADS + LANES_OF_ROW - 1) / LANES_OF_ROW;
// Floats from row to row in shared memory: an odd number of fours, so that fours of eight rows lie in
// different banks.
static constexpr u32 STRIDE = (QUADS | 1) * 4;
static constexpr u32 SCORES_STRIDE = COLUMNS + 4;

static_assert(SHARED_FLOATS ==
                  2 * ROWS * STRIDE + SHARES * (2 * COLUMNS * STRIDE + 2 * ROWS * SCORES_STRIDE + 3 * COLUMNS),
              "as Rust counts");

__device__ __forceinline__ u32 team() { return threadIdx.x / TEAM; }
__device__ __forceinline__ u32 group() { return threadIdx.x % TEAM / LANES_OF_ROW; }
__device__ __forceinline__ u32 lane() { return threadIdx.x % LANES_OF_ROW; }

// Copies rows from `first` on into shared memory as f32; rows from T on are zero.
template <u32 COUNT>
__device__ __forceinline__ void load_rows(float* tile, u64 array, u32 first, u32 time, u32 stride) {
    for (u32 i = threadIdx.x; i < COUNT * QUADS; i += THREADS) {
        const u32 row = i / QUADS, d = i % QUADS * 4;
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (first + row < time) {
            const u64 index = (u64)(first + row) * stride + d;
            if constexpr (HEAD_SIZE % 4 == 0) {
                four = load_elements(array, index);
            } else {
                four.x = load_element(array, index);
                if (d + 1 < HEAD_SIZE) four.y = load_element(array, index + 1);
                if (d + 2 < HEAD_SIZE) four.z = load_element(array, index + 2);
                if (d + 3 < HEAD_SIZE) four.w = load_element(array, index + 3);
            }
        }
        *reinterpret_cast<float4*>(tile + row * STRIDE + d) = four;
    }
}

__device__ __forceinline__ const float4& four_at(const float* at) {
    return *reinterpret_cast<const float4*>(at);
}

// scores[i][j] = own row R group + i . visited row lane + 16 j.
__device__ __forceinline__ void dot(float (&scores)[R][K], const float* own, const float* visited) {
#pragma unroll
    for (u32 i = 0; i < R; i++) {
#pragma unroll
        for (u32 j = 0; j < K; j++) scores[i][j] = 0.0f;
    }
    const float* rows = own + group() * R * STRIDE;
    const float* columns = visited + lane() * STRIDE;
#pragma unroll 4
    for (u32 d = 0; d < QUADS * 4; d += 4) {
        float4 x[R], y[K];
#pragma unroll
        for (u32 i = 0; i < R; i++) x[i] = four_at(rows + i * STRIDE + d);
#pragma unroll
        for (u32 j = 0; j < K; j++) y[j] = four_at(columns + j * LANES_OF_ROW * STRIDE + d);
#pragma unroll
        for (u32 i = 0; i < R; i++) {
#pragma unroll
            for (u32 j = 0; j < K; j++) {
                scores[i][j] = __fmaf_rn(x[i].x, y[j].x, scores[i][j]);
                scores[i][j] = __fmaf_rn(x[i].y, y[j].y, scores[i][j]);
                scores[i][j] = __fmaf_rn(x[i].z, y[j].z, scores[i][j]);
                scores[i][j] = __fmaf_rn(x[i].w, y[j].w, scores[i][j]);
            }
        }
    }
}

typedef float Sums[R][QUADS_A_THREAD][4];

// Lays scores down for the 16 threads of their rows.
__device__ __forceinline__ void put(float* tile, const float (&scores)[R][K]) {
#pragma unroll
    for (u32 i = 0; i < R; i++) {
        float* row = tile + (group() * R + i) * SCORES_STRIDE + lane();
#pragma unroll
        for (u32 j = 0; j < K; j++) row[j * LANES_OF_ROW] = scores[i][j];
    }
}

// sums[i] += scores' row R group + i times the visited rows.
__device__ __forceinline__ void add_product(Sums& sums, const float* scores, const float* visited) {
    const float* rows = scores + group() * R * SCORES_STRIDE;
#pragma unroll 2
    for (u32 column = 0; column < COLUMNS; column += 4) {
        float4 x[R];
#pragma unroll
        for (u32 i = 0; i < R; i++) x[i] = four_at(rows + i * SCORES_STRIDE + column);
#pragma unroll
        for (u32 q = 0; q < QUADS_A_THREAD; q++) {
            const u32 quad = lane() + q * LANES_OF_ROW;
            if (QUADS % LANES_OF_ROW != 0 && quad >= QUADS) break;
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                const float4 y = four_at(visited + (column + c) * STRIDE + quad * 4);
#pragma unroll
                for (u32 i = 0; i < R; i++) {
                    const float weight = c == 0 ? x[i].x : c == 1 ? x[i].y : c == 2 ? x[i].z : x[i].w;
                    sums[i][q][0] = __fmaf_rn(weight, y.x, sums[i][q][0]);
                    sums[i][q][1] = __fmaf_rn(weight, y.y, sums[i][q][1]);
                    sums[i][q][2] = __fmaf_rn(weight, y.z, sums[i][q][2]);
                    sums[i][q][3] = __fmaf_rn(weight, y.w, sums[i][q][3]);
                }
            }
        }
    }
}

// Writes sums times a factor for each row, to rows from `first` on that are below T.
__device__ __forceinline__ void store_rows(u64 array, u32 first, u32 time, u32 stride, const Sums& sums,
                                           const float (&factors)[R]) {
#pragma unroll
    for (u32 i = 0; i < R; i++) {
        const u32 row = first + group() * R + i;
        if (row >= time) continue;
#pragma unroll
        for (u32 q = 0; q < QUADS_A_THREAD; q++) {
            const u32 quad = lane() + q * LANES_OF_ROW;
            if (quad >= QUADS) continue;
            const u64 index = (u64)row * stride + quad * 4;
            float4 four;
            four.x = sums[i][q][0] * factors[i];
            four.y = sums[i][q][1] * factors[i];
            four.z = sums[i][q][2] * factors[i];
            four.w = sums[i][q][3] * factors[i];
            if constexpr (HEAD_SIZE % 4 == 0) {
                store_elements(array, index, four);
            } else {
                const u32 d = quad * 4;
                store_element(array, index, four.x);
                if (d + 1 < HEAD_SIZE) store_element(array, index + 1, four.y);
                if (d + 2 < HEAD_SIZE) store_element(array, index + 2, four.z);
                if (d + 3 < HEAD_SIZE) store_element(array, index + 3, four.w);
            }
        }
    }
}

// The parts of shared memory: the block's own rows, the round's visited rows and the numbers of
// planes that belong to them, and the team's scores.
struct Tiles {
    float* own[2];
    float* visited[2];
    float* scores[2];
    float* planes;
};

__device__ __forceinline__ Tiles tiles_in(u8* shared) {
    float* at = reinterpret_cast<float*>(shared);
    float* visited = at + 2 * ROWS * STRIDE;
    float* scores = visited + 2 * ROUND * STRIDE;
    float* of_team = scores + team() * 2 * ROWS * SCORES_STRIDE;
    return {{at, at + ROWS * STRIDE},
            {visited, visited + ROUND * STRIDE},
            {of_team, of_team + ROWS * SCORES_STRIDE},
            scores + SHARES * 2 * ROWS * SCORES_STRIDE};
}

// Where a thread of a later team leaves its first of so many numbers, or finds those left for it.
__device__ __forceinline__ float* left_behind(u8* shared, u32 of_team, u32 numbers) {
    return reinterpret_cast<float*>(shared) + (of_team - 1) * numbers * TEAM + threadIdx.x % TEAM;
}
static constexpr u32 SUMS_OF_THREAD = R * QUADS_A_THREAD * 4;

__device__ __forceinline__ float& sum_at(Sums& sums, u32 i) {
    return sums[i / (QUADS_A_THREAD * 4)][i / 4 % QUADS_A_THREAD][i % 4];
}
__device__ __forceinline__ void leave(float* at, Sums& sums) {
#pragma unroll
    for (u32 i = 0; i < SUMS_OF_THREAD; i++) at[i * TEAM] = sum_at(sums, i);
}
__device__ __forceinline__ void gather(const float* at, Sums& sums) {
#pragma unroll
    for (u32 i = 0; i < SUMS_OF_THREAD; i++) sum_at(sums, i) += at[i * TEAM];
}

// Puts what a later team left behind together with what the first one found.
__device__ __forceinline__ void put_together(const float* at, float (&shifts)[R], float (&totals)[R],
                                             Sums& sums) {
#pragma unroll
    for (u32 i = 0; i < R; i++) {
        const float theirs = at[2 * i * TEAM];
        // The first team has seen key 0, so this is a number.
        const float shift = fmaxf(shifts[i], theirs);
        const float factor = exp2_fast(shifts[i] - shift), their_factor = exp2_fast(theirs - shift);
        shifts[i] = shift;
        totals[i] = __fmaf_rn(totals[i], factor, at[(2 * i + 1) * TEAM] * their_factor);
#pragma unroll
        for (u32 q = 0; q < QUADS_A_THREAD; q++) {
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                const u32 number = 2 * R + (i * QUADS_A_THREAD + q) * 4 + c;
                sums[i][q][c] = __fmaf_rn(sums[i][q][c], factor, at[number * TEAM] * their_factor);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_MIN)
    attention_forward(const __grid_constant__ Attention call) {
    DYNAMIC_SHARED(shared);
    const Tiles tiles = tiles_in(shared);
    const Task task = task_of_block(call, blockIdx.x, call.tiles);
    const u32 first = (call.tiles - 1 - task.rank) * ROWS;
    const u32 stride = 3 * channels(call);
    const u64 keys = head_of_qkv(call, call.qkv, task, 1), values = head_of_qkv(call, call.qkv, task, 2);
    load_rows<ROWS>(tiles.own[0], head_of_qkv(call, call.qkv, task, 0), first, call.time, stride);

    Sums sums = {};
    float shifts[R], totals[R];
#pragma unroll
    for (u32 i = 0; i < R; i++) {
        shifts[i] = -infinity();
        totals[i] = 0.0f;
    }
    const u32 end = min(first + ROWS, call.time);
    for (u32 round = 0; round < end; round += ROUND) {
        __syncthreads();
        load_rows<ROUND>(tiles.visited[0], keys, round, call.time, stride);
        load_rows<ROUND>(tiles.visited[1], values, round, call.time, stride);
        __syncthreads();
        const u32 mine = team() * COLUMNS, key = round + mine;
        if (key >= end) continue;
        float scores[R][K];
        dot(scores, tiles.own[0], tiles.visited[0] + mine * STRIDE);
#pragma unroll
        for (u32 i = 0; i < R; i++) {
            const u32 row = first + group() * R + i;
            float largest = -infinity();
#pragma unroll
            for (u32 j = 0; j < K; j++) {
                if (key + lane() + j * LANES_OF_ROW > row) scores[i][j] = -infinity();
                largest = fmaxf(largest, scores[i][j]);
            }
            largest = max_over_lanes<LANES_OF_ROW>(largest);
            const float shift = fmaxf(shifts[i], largest * call.scale_log2);
            // A row that sees no key of this team yet has no largest score.
            const float base = shift == -infinity() ? 0.0f : shift;
            const float factor = exp2_fast(shifts[i] - base);
            shifts[i] = shift;
            totals[i] *= factor;
#pragma unroll
            for (u32 j = 0; j < K; j++) {
                scores[i][j] = exp2_fast(__fmaf_rn(scores[i][j], call.scale_log2, -base));
                totals[i] += scores[i][j];
            }
#pragma unroll
            for (u32 q = 0; q < QUADS_A_THREAD; q++) {
#pragma unroll
                for (u32 c = 0; c < 4; c++) sums[i][q][c] *= factor;
            }
        }
        put(tiles.scores[0], scores);
        __syncwarp();
        add_product(sums, tiles.scores[0], tiles.visited[1] + mine * STRIDE);
    }
#pragma unroll
    for (u32 i = 0; i < R; i++) totals[i] = sum_over_lanes<LANES_OF_ROW>(totals[i]);
    if constexpr (SHARES > 1) {
        constexpr u32 NUMBERS = SUMS_OF_THREAD + 2 * R;
        __syncthreads();
        if (team() > 0) {
            float* at = left_behind(shared, team(), NUMBERS);
#pragma unroll
            for (u32 i = 0; i < R; i++) {
                at[2 * i * TEAM] = shifts[i];
                at[(2 * i + 1) * TEAM] = totals[i];
            }
            leave(at + 2 * R * TEAM, sums);
        }
        __syncthreads();
        if (team() > 0) return;
        for (u32 other = 1; other < SHARES; other++) {
            put_together(left_behind(shared, other, NUMBERS), shifts, totals, sums);
        }
    }
#pragma unroll
    for (u32 i = 0; i < R; i++) {
        totals[i] = 1.0f / totals[i];
        const u32 row = first + group() * R + i;
        if (lane() == 0 && row < call.time) {
            float* statistics = statistics_of(call, task, row);
            statistics[0] = shifts[i];
            statistics[1] = totals[i];
        }
    }
    const u64 out = head_of_out(call, call.out, task);
    store_rows(out, first, call.time, channels(call), sums, totals);
}

// A probability and the gradient of its score, short of the factor 1 / sqrt(D).
__device__ __forceinline__ void to_gradient(float& score, float& d_score, float scale_log2, float shift,
                                            float o, float reciprocal, bool is_seen) {
    const float power = exp2_fast(__fmaf_rn(score, scale_log2, -shift));
    score = is_seen ? power * reciprocal : 0.0f;
    d_score = score * (d_score - o);
}

// Owns keys, and visits the queries that see them.
__device__ __forceinline__ void backward_of_keys(const Attention& call, u8* shared, Task task) {
    const Tiles tiles = tiles_in(shared);
    const u32 first = task.rank * ROWS;
    const u32 stride = 3 * channels(call);
    const u64 queries = head_of_qkv(call, call.qkv, task, 0), d_out = head_of_out(call, call.d_out, task);
    load_rows<ROWS>(tiles.own[0], head_of_qkv(call, call.qkv, task, 1), first, call.time, stride);
    load_rows<ROWS>(tiles.own[1], head_of_qkv(call, call.qkv, task, 2), first, call.time, stride);
    Sums d_keys = {}, d_values = {};
    for (u32 round = first / COLUMNS * COLUMNS; round < call.time; round += ROUND) {
        __syncthreads();
        load_rows<ROUND>(tiles.visited[0], queries, round, call.time, stride);
        load_rows<ROUND>(tiles.visited[1], d_out, round, call.time, channels(call));
        for (u32 i = threadIdx.x; i < ROUND; i += THREADS) {
            for (u32 plane = 0; plane < 3; plane++) {
                const bool is_there = round + i < call.padded_time;
                const float number = is_there ? plane_of(call, task, plane)[round + i] : 0.0f;
                tiles.planes[plane * ROUND + i] = number;
            }
        }
        __syncthreads();
        const u32 mine = team() * COLUMNS, query = round + mine;
        if (query >= call.time) continue;
        const float* visited[2] = {tiles.visited[0] + mine * STRIDE, tiles.visited[1] + mine * STRIDE};
        float scores[R][K], d_scores[R][K];
        dot(scores, tiles.own[0], visited[0]);
        dot(d_scores, tiles.own[1], visited[1]);
#pragma unroll
        for (u32 j = 0; j < K; j++) {
            const u32 column = lane() + j * LANES_OF_ROW;
            const float* planes = tiles.planes + mine + column;
            const float shift = planes[0], o = planes[ROUND], reciprocal = planes[2 * ROUND];
#pragma unroll
            for (u32 i = 0; i < R; i++) {
                const bool is_seen = first + group() * R + i <= query + column;
                to_gradient(scores[i][j], d_scores[i][j], call.scale_log2, shift, o, reciprocal, is_seen);
            }
        }
        put(tiles.scores[0], scores);
        put(tiles.scores[1], d_scores);
        __syncwarp();
        add_product(d_values, tiles.scores[0], visited[1]);
        add_product(d_keys, tiles.scores[1], visited[0]);
    }
    if constexpr (SHARES > 1) {
        constexpr u32 NUMBERS = 2 * SUMS_OF_THREAD;
        __syncthreads();
        if (team() > 0) {
            float* at = left_behind(shared, team(), NUMBERS);
            leave(at, d_keys);
            leave(at + SUMS_OF_THREAD * TEAM, d_values);
        }
        __syncthreads();
        if (team() > 0) return;
        for (u32 other = 1; other < SHARES; other++) {
            const float* at = left_behind(shared, other, NUMBERS);
            gather(at, d_keys);
            gather(at + SUMS_OF_THREAD * TEAM, d_values);
        }
    }
    float scales[R], ones[R];
#pragma unroll
    for (u32 i = 0; i < R; i++) {
        scales[i] = call.scale;
        ones[i] = 1.0f;
    }
    store_rows(head_of_qkv(call, call.d_qkv, task, 1), first, call.time, stride, d_keys, scales);
    store_rows(head_of_qkv(call, call.d_qkv, task, 2), first, call.time, stride, d_values, ones);
}

// Owns queries, and visits the keys that they see.
__device__ __forceinline__ void backward_of_queries(const Attention& call, u8* shared, Task task) {
    const Tiles tiles = tiles_in(shared);
    const u32 first = (call.tiles - 1 - task.rank) * ROWS;
    const u32 stride = 3 * channels(call);
    const u64 keys = head_of_qkv(call, call.qkv, task, 1), values = head_of_qkv(call, call.qkv, task, 2);
    const u64 d_out = head_of_out(call, call.d_out, task);
    load_rows<ROWS>(tiles.own[0], head_of_qkv(call, call.qkv, task, 0), first, call.time, stride);
    load_rows<ROWS>(tiles.own[1], d_out, first, call.time, channels(call));
    float shifts[R], os[R], reciprocals[R], scales[R];
#pragma unroll
    for (u32 i = 0; i < R; i++) {
        const u32 row = first + group() * R + i;
        shifts[i] = plane_of(call, task, 0)[row];
        os[i] = plane_of(call, task, 1)[row];
        reciprocals[i] = plane_of(call, task, 2)[row];
        scales[i] = call.scale;
    }
    Sums d_queries = {};
    const u32 end = min(first + ROWS, call.time);
    for (u32 round = 0; round < end; round += ROUND) {
        __syncthreads();
        load_rows<ROUND>(tiles.visited[0], keys, round, call.time, stride);
        load_rows<ROUND>(tiles.visited[1], values, round, call.time, stride);
        __syncthreads();
        const u32 mine = team() * COLUMNS, key = round + mine;
        if (key >= end) continue;
        float scores[R][K], d_scores[R][K];
        dot(scores, tiles.own[0], tiles.visited[0] + mine * STRIDE);
        dot(d_scores, tiles.own[1], tiles.visited[1] + mine * STRIDE);
#pragma unroll
        for (u32 i = 0; i < R; i++) {
#pragma unroll
            for (u32 j = 0; j < K; j++) {
                const bool is_seen = key + lane() + j * LANES_OF_ROW <= first + group() * R + i;
                to_gradient(scores[i][j], d_scores[i][j], call.scale_log2, shifts[i], os[i],
                            reciprocals[i], is_seen);
            }
        }
        put(tiles.scores[1], d_scores);
        __syncwarp();
        add_product(d_queries, tiles.scores[1], tiles.visited[0] + mine * STRIDE);
    }
    if constexpr (SHARES > 1) {
        __syncthreads();
        if (team() > 0) leave(left_behind(shared, team(), SUMS_OF_THREAD), d_queries);
        __syncthreads();
        if (team() > 0) return;
        for (u32 other = 1; other < SHARES; other++) {
            gather(left_behind(shared, other, SUMS_OF_THREAD), d_queries);
        }
    }
    const u64 d_q = head_of_qkv(call, call.d_qkv, task, 0);
    store_rows(d_q, first, call.time, stride, d_queries, scales);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_MIN)
    attention_backward(const __grid_constant__ Attention call) {
    DYNAMIC_SHARED(shared);
    // Keys and queries by turns, so that long tasks of both begin first.
    Task task = task_of_block(call, blockIdx.x, 2 * call.tiles);
    const bool owns_keys = task.rank % 2 == 0;
    task.rank /= 2;
    if (owns_keys) {
        backward_of_keys(call, shared, task);
    } else {
        backward_of_queries(call, shared, task);
    }
}
