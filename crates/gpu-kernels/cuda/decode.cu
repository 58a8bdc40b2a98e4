// One token at a time: its attention to all positions up to its own. Launched by src/decode.rs.
//
//   p[s] = softmax_s(q . k[s] / sqrt(D)), s <= position      out = sum_s p[s] v[s]
//
// `place` holds the token and its position, so that one recording serves all. Keys and values are
// activations [context, C]; `scores` [H, context] is f32 without meaning between calls.
//
// Grid: a block of THREADS a head, which first stores k and v of this token.
//
// Defines: THREADS, CHANNELS, HEAD_SIZE, ATTENTION_SCALE, ACTIVATION_BYTES.

#include "numbers.cuh"
#include "quick.cuh"
#include "reduce.cuh"

struct Attention {
    Stored* out;
    Stored* keys;
    Stored* values;
    const Stored* qkv;
    const u32* place;
    float* scores;
    u32 context;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    decode_attention(const __grid_constant__ Attention attention) {
    __shared__ float maxima[THREADS / WARP_LANES], sums[THREADS / WARP_LANES];
    const u32 first = blockIdx.x * HEAD_SIZE;
    const u32 count = attention.place[1] + 1;
    const Stored* q = attention.qkv + first;
    float* scores = attention.scores + (u64)blockIdx.x * attention.context;
    const u64 here = (u64)(count - 1) * CHANNELS + first;
    for (u32 d = threadIdx.x; d < HEAD_SIZE; d += THREADS) {
        attention.keys[here + d] = q[CHANNELS + d];
        attention.values[here + d] = q[2 * CHANNELS + d];
    }
    __syncthreads();
    float maximum = Maximum::NEUTRAL;
    for (u32 s = threadIdx.x; s < count; s += THREADS) {
        const Stored* key = attention.keys + (u64)s * CHANNELS + first;
        float dot = 0.0f;
        for (u32 d = 0; d < HEAD_SIZE; d++) dot = fmaf(widen(q[d]), widen(key[d]), dot);
        scores[s] = dot * ATTENTION_SCALE;
        maximum = Maximum::of(maximum, scores[s]);
    }
    maximum = over_block<Maximum, THREADS>(maximum, maxima);
    float sum = 0.0f;
    for (u32 s = threadIdx.x; s < count; s += THREADS) {
        scores[s] = quick_exp2((scores[s] - maximum) * LOG2_E);
        sum += scores[s];
    }
    sum = over_block<Sum, THREADS>(sum, sums);
    __syncthreads();
    for (u32 d = threadIdx.x; d < HEAD_SIZE; d += THREADS) {
        float out = 0.0f;
        for (u32 s = 0; s < count; s++) {
            out = fmaf(scores[s], widen(attention.values[(u64)s * CHANNELS + first + d]), out);
        }
        narrow_to(attention.out[first + d], __fdiv_rn(out, sum));
    }
}
