// LayerNorm over the channels of a row, alone or after the residual sum, and its gradients. Launched
// by src/layernorm.rs.
//
//   mean = sum_c x[c] / C      scale = 1 / sqrt(sum_c (x[c] - mean)^2 / C + EPSILON)
//   out[c] = (x[c] - mean) scale gain[c] + bias[c]
//   n = (x - mean) scale, g = d_out gain:
//   d_x = (g - mean_c g - n mean_c(g n)) scale;  d_gain = sum_rows d_out n;  d_bias = sum_rows d_out;
//   d_before = sum_rows d_x, as it is stored: the gradient of a bias that was added to x
//
// A warp takes a row at a time and keeps it in registers; statistics are f32. Rows [rows, C] of
// activations, statistics [rows, 2], gain then bias as f32.
//
// Grid: any number of blocks of THREADS, over whose warps the rows are dealt. The backward kernel
// leaves in `partials` [gridDim, 3 C] what the rows of each block add to d_before, d_gain and d_bias: each
// warp adds up its rows in order, and the block its warps in order. Shared memory: C or 3 C floats a
// warp.
//
// Defines: THREADS, CHANNELS, VECTOR (numbers of one access, 1 where C is not divisible), EPSILON,
// ACTIVATION_BYTES.

#include "numbers.cuh"
#include "reduce.cuh"

static constexpr u32 WARPS = THREADS / WARP_LANES;
static constexpr u32 PIECES = CHANNELS / VECTOR;
// Pieces of a lane, the last of which may be beyond the row.
static constexpr u32 PIECES_OF_LANE = (PIECES + WARP_LANES - 1) / WARP_LANES;
static constexpr float PER_CHANNEL = 1.0f / CHANNELS;

struct Forward {
    Stored* out;
    float* statistics;
    // Where the residual sum of `left` and `right` is written; without one, `left` is the row.
    Stored* x;
    const Stored* left;
    const Stored* right;
    const float* gain_bias;
    u32 rows;
};

struct Backward {
    Stored* d_x;
    const Stored* d_out;
    const Stored* x;
    const float* statistics;
    const float* gain;
    // A gradient that is added to d_x, if there is one.
    const Stored* d_residual;
    float* partials;
    u32 rows;
};

__device__ __forceinline__ u32 first_row() {
    return blockIdx.x * WARPS + threadIdx.x / WARP_LANES;
}

// Calls `visit(piece, channel)` for the pieces of this lane.
template <class Visit>
__device__ __forceinline__ void over_pieces(Visit visit) {
    const u32 lane = threadIdx.x % WARP_LANES;
#pragma unroll
    for (u32 piece = 0; piece < PIECES_OF_LANE; piece++) {
        const u32 index = piece * WARP_LANES + lane;
        if (PIECES % WARP_LANES == 0 || index < PIECES) visit(piece, index * VECTOR);
    }
}

template <bool IS_RESIDUAL>
__device__ __forceinline__ void normalise(const Forward& forward, u32 row) {
    const u64 start = (u64)row * CHANNELS;
    Numbers<VECTOR> x[PIECES_OF_LANE];
    float sum = 0.0f;
    over_pieces([&](u32 piece, u32 channel) {
        if constexpr (IS_RESIDUAL) {
            const auto left = load_numbers<VECTOR>(forward.left + start + channel);
            const auto right = load_numbers<VECTOR>(forward.right + start + channel);
#pragma unroll
            for (u32 k = 0; k < VECTOR; k++) {
                x[piece].at[k] = rounded(left.at[k] + right.at[k]);
            }
        } else {
            x[piece] = load_numbers<VECTOR>(forward.left + start + channel);
        }
    });
    over_pieces([&](u32 piece, u32 channel) {
        if constexpr (IS_RESIDUAL) store_numbers<VECTOR>(forward.x + start + channel, x[piece]);
#pragma unroll
        for (u32 k = 0; k < VECTOR; k++) sum += x[piece].at[k];
    });
    const float mean = over_warp<Sum>(sum) * PER_CHANNEL;
    float squares = 0.0f;
    over_pieces([&](u32 piece, u32) {
#pragma unroll
        for (u32 k = 0; k < VECTOR; k++) {
            const float deviation = x[piece].at[k] - mean;
            squares = fmaf(deviation, deviation, squares);
        }
    });
    const float variance = over_warp<Sum>(squares) * PER_CHANNEL;
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(variance + EPSILON));
    over_pieces([&](u32 piece, u32 channel) {
        const auto gain = load_numbers<VECTOR>(forward.gain_bias + channel);
        const auto bias = load_numbers<VECTOR>(forward.gain_bias + CHANNELS + channel);
        Numbers<VECTOR> out;
#pragma unroll
        for (u32 k = 0; k < VECTOR; k++) {
            out.at[k] = fmaf((x[piece].at[k] - mean) * scale, gain.at[k], bias.at[k]);
        }
        store_numbers<VECTOR>(forward.out + start + channel, out);
    });
    if (threadIdx.x % WARP_LANES == 0) {
        forward.statistics[2 * (u64)row] = mean;
        forward.statistics[2 * (u64)row + 1] = scale;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    layernorm_forward(const __grid_constant__ Forward forward) {
    for (u32 row = first_row(); row < forward.rows; row += gridDim.x * WARPS) {
        normalise<false>(forward, row);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    layernorm_forward_residual(const __grid_constant__ Forward forward) {
    for (u32 row = first_row(); row < forward.rows; row += gridDim.x * WARPS) {
        normalise<true>(forward, row);
    }
}

// What a lane adds up over its rows.
struct Sums {
    Numbers<VECTOR> before[PIECES_OF_LANE];
    Numbers<VECTOR> gain[PIECES_OF_LANE];
    Numbers<VECTOR> bias[PIECES_OF_LANE];
};

__device__ __forceinline__ void visit_row(const Backward& backward, u32 row, Sums& sums) {
    const u64 start = (u64)row * CHANNELS;
    const float mean = backward.statistics[2 * (u64)row];
    const float scale = backward.statistics[2 * (u64)row + 1];
    // n and g.
    Numbers<VECTOR> n[PIECES_OF_LANE], g[PIECES_OF_LANE], before[PIECES_OF_LANE];
    over_pieces([&](u32 piece, u32 channel) {
        n[piece] = load_numbers<VECTOR>(backward.x + start + channel);
        g[piece] = load_numbers<VECTOR>(backward.d_out + start + channel);
        if (backward.d_residual) before[piece] = load_numbers<VECTOR>(backward.d_residual + start + channel);
    });
    float sum_g = 0.0f, sum_gn = 0.0f;
    over_pieces([&](u32 piece, u32 channel) {
        const auto gain = load_numbers<VECTOR>(backward.gain + channel);
#pragma unroll
        for (u32 k = 0; k < VECTOR; k++) {
            const float d_out = g[piece].at[k];
            n[piece].at[k] = (n[piece].at[k] - mean) * scale;
            g[piece].at[k] = d_out * gain.at[k];
            sums.gain[piece].at[k] = fmaf(d_out, n[piece].at[k], sums.gain[piece].at[k]);
            sums.bias[piece].at[k] += d_out;
            sum_g += g[piece].at[k];
            sum_gn = fmaf(g[piece].at[k], n[piece].at[k], sum_gn);
        }
    });
    const float mean_g = over_warp<Sum>(sum_g) * PER_CHANNEL;
    const float mean_gn = over_warp<Sum>(sum_gn) * PER_CHANNEL;
    over_pieces([&](u32 piece, u32 channel) {
        Numbers<VECTOR> d_x;
#pragma unroll
        for (u32 k = 0; k < VECTOR; k++) {
            d_x.at[k] = (g[piece].at[k] - mean_g - n[piece].at[k] * mean_gn) * scale;
            if (backward.d_residual) d_x.at[k] += before[piece].at[k];
            d_x.at[k] = rounded(d_x.at[k]);
            sums.before[piece].at[k] += d_x.at[k];
        }
        store_numbers<VECTOR>(backward.d_x + start + channel, d_x);
    });
}

// Sums of a warp that shared memory has room for at once: all three, or one after the other.
static constexpr u32 SUMS = 3;
static constexpr u32 SUMS_AT_ONCE = SUMS * WARPS * CHANNELS * 4 <= 48 * 1024 ? SUMS : 1;

// Writes what the warps of the block have added up, one after the other, to `partials`.
__device__ __forceinline__ void leave(float* partials, const Sums& sums, float* shared) {
    const Numbers<VECTOR>* const all[SUMS] = {sums.before, sums.gain, sums.bias};
#pragma unroll
    for (u32 first = 0; first < SUMS; first += SUMS_AT_ONCE) {
        float* own = shared + threadIdx.x / WARP_LANES * CHANNELS;
        if (first > 0) __syncthreads();
#pragma unroll
        for (u32 i = 0; i < SUMS_AT_ONCE; i++) {
            over_pieces([&](u32 piece, u32 channel) {
                store_numbers<VECTOR>(own + i * WARPS * CHANNELS + channel, all[first + i][piece]);
            });
        }
        __syncthreads();
        for (u32 index = threadIdx.x; index < SUMS_AT_ONCE * CHANNELS; index += THREADS) {
            const u32 i = index / CHANNELS, c = index % CHANNELS;
            float sum = 0.0f;
#pragma unroll
            for (u32 warp = 0; warp < WARPS; warp++) {
                sum += shared[(i * WARPS + warp) * CHANNELS + c];
            }
            partials[first * CHANNELS + index] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    layernorm_backward(const __grid_constant__ Backward backward) {
    alignas(16) __shared__ float shared[SUMS_AT_ONCE * WARPS * CHANNELS];
    Sums sums;
    over_pieces([&](u32 piece, u32) {
#pragma unroll
        for (u32 k = 0; k < VECTOR; k++) {
            sums.before[piece].at[k] = sums.gain[piece].at[k] = sums.bias[piece].at[k] = 0.0f;
        }
    });
    for (u32 row = first_row(); row < backward.rows; row += gridDim.x * WARPS) {
        visit_row(backward, row, sums);
    }
    float* partials = backward.partials + (u64)blockIdx.x * 3 * CHANNELS;
    leave(partials, sums, shared);
}
