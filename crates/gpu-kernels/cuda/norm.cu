// The global gradient norm by its one pinned sum tree, and what follows from it: the clip scale,
// and the largest gradient of every tensor that has no bias yet. Launched by src/adamw.rs.
//
// Squares and sums are f64, where the square of an f32 is exact, so a fused multiply-add gives the
// bits of a product and a sum. A tensor is cut into chunks of CHUNK_ELEMENTS, the last one
// shorter; element i of a chunk belongs to lane i mod CHUNK_LANES; a lane adds its squares in
// ascending order; lanes fold by halves. The chunk sums of all tensors, in order, go into such lanes
// once more. Elements that are not finite count as zero, and are counted.
//
// Where others have parts of the tensors, the sums of all chunks of whole tensors have places, of which a launch
// fills its own, and likewise the largest gradients; once those of all parts are added up, `finish_norm`
// folds them.
//
// Grid: a block of THREADS for every chunk. The block that finishes last folds the chunk sums, so
// that one launch does it all; `finish_norm` is one block. Overwrites chunk_sums, gradient_norm, clip_scale and is_dropped; adds to
// nonfinite_gradients; raises gradient_maxima; lowers first_nonfinite. Shared memory: one f64 for
// every lane.
//
// It also tells the update behind it whether it is to be dropped: where there is a gate, if a gradient
// or the loss is not finite or the gate is closed already, and the gate closes; where there is none, if
// the loss is not finite.
//
// Defines: THREADS, BLOCKS_MIN, CHUNK_ELEMENTS, CHUNK_LANES.

#include "prelude.cuh"
#include "table.cuh"

static constexpr u32 ROWS = CHUNK_ELEMENTS / CHUNK_LANES;
// Rows that a thread has on their way at once: few, so that all blocks of some twelve million gradients fit a device.
static constexpr u32 ROWS_AT_ONCE = 2;
// Lanes of a thread, beside each other, so that it loads them as one.
static constexpr u32 LANES_OF_THREAD = 4;
static_assert(ROWS % ROWS_AT_ONCE == 0 && CHUNK_LANES == LANES_OF_THREAD * THREADS, "whole rounds");

// Everything a launch is given.
struct Norm {
    Bases bases;
    const Tensor* tensors;
    // Of every chunk: its tensor, its place and its length there, and nothing. Nobody has to look for these.
    const uint4* chunks;
    i32* biases;
    u32* gradient_maxima;
    double* chunk_sums;
    // The bits of the loss that the gradients are of, an f64; null if it is not looked at.
    const u64* loss;
    Control* control;
    double clip_norm;
    u32 tensor_count;
    // Whether the norm is wanted; else only gradients that choose a bias are read.
    u32 sums;
    // Where others have parts: the first place of each tensor's chunks, among those of the whole ones, and of
    // all places; the places of the largest gradients, null if none is wanted; what is not finite. Else null.
    const u32* places;
    const u32* whole_places;
    double* maxima;
    double* nonfinite;
    u64 place_count;
};

// What the lanes of a thread find in a chunk.
struct Found {
    double sums[LANES_OF_THREAD];
    // The bits of the largest finite magnitude, which order as magnitudes do.
    u32 max_bits;
    u32 nonfinite;
};

__device__ __forceinline__ void add(Found& found, u32 lane, u32 bits) {
    const u32 magnitude = bits & MAGNITUDE;
    const bool finite = magnitude < INFINITE;
    const double g = finite ? (double)as_float(magnitude) : 0.0;
    found.sums[lane] = __fma_rn(g, g, found.sums[lane]);
    found.max_bits = max(found.max_bits, finite ? magnitude : 0u);
    found.nonfinite += finite ? 0 : 1;
}

// A gradient as it lies there, as f32 bits.
template <u32 BYTES>
__device__ __forceinline__ u32 widened(u32 bits) {
    return bits << (BYTES == 2 ? 16 : 0);
}
template <u32 BYTES>
__device__ __forceinline__ u32 load_gradient(u64 chunk, u32 index) {
    return widened<BYTES>(load_one<BYTES>(chunk, index));
}

__device__ __forceinline__ u32 lane_of(u32 k) { return threadIdx.x * LANES_OF_THREAD + k; }

template <u32 BYTES>
__device__ __forceinline__ Found visit_chunk(u64 chunk, u32 length) {
    Found found = {};
    if (length == CHUNK_ELEMENTS && chunk % (LANES_OF_THREAD * BYTES) == 0) {
#pragma unroll 1
        for (u32 row = 0; row < ROWS; row += ROWS_AT_ONCE) {
            Four<u32> bits[ROWS_AT_ONCE];
#pragma unroll
            for (u32 r = 0; r < ROWS_AT_ONCE; r++) {
                bits[r] = load_four<BYTES>(chunk, (u64)((row + r) * CHUNK_LANES + lane_of(0)));
            }
            // Over this the compiler moves no load: all of them are on their way at once.
            __syncwarp();
#pragma unroll
            for (u32 r = 0; r < ROWS_AT_ONCE; r++) {
#pragma unroll
                for (u32 k = 0; k < LANES_OF_THREAD; k++) add(found, k, widened<BYTES>(bits[r].at[k]));
            }
        }
        return found;
    }
#pragma unroll 1
    for (u32 row = 0; row * CHUNK_LANES < length; row++) {
#pragma unroll
        for (u32 k = 0; k < LANES_OF_THREAD; k++) {
            const u32 index = row * CHUNK_LANES + lane_of(k);
            if (index < length) add(found, k, load_gradient<BYTES>(chunk, index));
        }
    }
    return found;
}

// Folds the lanes by halves; the sum is for thread 0 alone.
__device__ __forceinline__ double fold(double* lanes) {
    for (u32 half = CHUNK_LANES / 2; half >= WARP_LANES; half /= 2) {
        __syncthreads();
        for (u32 lane = threadIdx.x; lane < half; lane += THREADS) {
            lanes[lane] = __dadd_rn(lanes[lane], lanes[lane + half]);
        }
    }
    // The rest is the first warp's.
    for (u32 half = WARP_LANES / 2; half > 0 && threadIdx.x < WARP_LANES; half /= 2) {
        __syncwarp();
        if (threadIdx.x < half) lanes[threadIdx.x] = __dadd_rn(lanes[threadIdx.x], lanes[threadIdx.x + half]);
    }
    return lanes[0];
}

// Names the first of the elements that a thread found not finite. Hardly ever done, so they are read
// again.
template <u32 BYTES>
__device__ __forceinline__ void name_first(const Norm& norm, u64 chunk, u32 length, u64 before) {
#pragma unroll 1
    for (u32 row = 0; row < ROWS; row++) {
#pragma unroll 1
        for (u32 k = 0; k < LANES_OF_THREAD; k++) {
            const u32 index = row * CHUNK_LANES + lane_of(k);
            if (index >= length) continue;
            const u32 bits = load_gradient<BYTES>(chunk, index);
            if ((bits & MAGNITUDE) < INFINITE) continue;
            atomicMin(&norm.control->first_nonfinite, before + index);
        }
    }
}

// Whether the update is to be dropped.
__device__ __forceinline__ bool is_to_drop(const Norm& norm) {
    const bool is_loss_bad = norm.loss && (*norm.loss >> 52 & 0x7FF) == 0x7FF;
    u32* const gate = norm.control->gate;
    if (!gate) return is_loss_bad;
    // The counts of all blocks are there, as their sums are.
    if (is_loss_bad || atomicAdd(&norm.control->nonfinite_gradients, (u64)0) != 0) *gate = 1;
    return *gate != 0;
}

// Adds the chunk sums of all tensors and leaves the norm and the clip scale. For thread 0, the clip scale.
__device__ __forceinline__ float finish(const Norm& norm, double* lanes, u64 count) {
    for (u32 lane = threadIdx.x; lane < CHUNK_LANES; lane += THREADS) {
        double sum = 0.0;
        for (u64 chunk = lane; chunk < count; chunk += CHUNK_LANES) {
            sum = __dadd_rn(sum, __ldcg(norm.chunk_sums + chunk));
        }
        lanes[lane] = sum;
    }
    const double sum = fold(lanes);
    const double length = __dsqrt_rn(sum);
    const double ratio = __ddiv_rn(norm.clip_norm, length);
    const float clip_scale = __double2float_rn(ratio < 1.0 ? ratio : 1.0);
    if (threadIdx.x == 0) {
        norm.control->gradient_norm = length;
        norm.control->clip_scale = clip_scale;
        norm.control->blocks_done = 0;
    }
    return clip_scale;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_MIN)
    gradient_norm(const __grid_constant__ Norm norm) {
    __shared__ double lanes[CHUNK_LANES];
    __shared__ bool is_last;
    // An update brings what it needs besides.
    launch_next();
    const uint4 row = norm.chunks[blockIdx.x];
    const Place place = {row.x, row.y};
    const u32 length = row.z;
    const bool chooses_bias = norm.biases[place.tensor] == BIAS_UNSET;
    if (!norm.sums && !chooses_bias) return;

    const Tensor tensor = norm.tensors[place.tensor];
    const u64 start = (u64)place.chunk * CHUNK_ELEMENTS;
    const bool is_bf16 = tensor.kind & KIND_BF16_GRADIENTS;
    const u32 bytes = is_bf16 ? 2 : 4;
    const u64 chunk = norm.bases.gradients + tensor.gradients + start * bytes;
    const Found found = is_bf16 ? visit_chunk<2>(chunk, length) : visit_chunk<4>(chunk, length);

    const u64 own = norm.places ? norm.places[place.tensor] + place.chunk : blockIdx.x;
    if (chooses_bias && found.max_bits != 0) {
        if (norm.maxima) {
            // Magnitudes order as their bits do.
            const double largest = (double)as_float(found.max_bits);
            atomicMax(reinterpret_cast<u64*>(norm.maxima + own), (u64)__double_as_longlong(largest));
        } else {
            atomicMax(norm.gradient_maxima + place.tensor, found.max_bits);
        }
    }
    if (!norm.sums) return;
    count(&norm.control->nonfinite_gradients, found.nonfinite);
    if (found.nonfinite != 0) {
        const u64 before = tensor.first_element + start;
        is_bf16 ? name_first<2>(norm, chunk, length, before) : name_first<4>(norm, chunk, length, before);
    }
    for (u32 k = 0; k < LANES_OF_THREAD; k++) lanes[lane_of(k)] = found.sums[k];
    const double sum = fold(lanes);
    if (threadIdx.x == 0) {
        norm.chunk_sums[own] = sum;
        // Whoever counts last sees the sums of all others.
        __threadfence();
        is_last = atomicAdd(&norm.control->blocks_done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (norm.places) {
        if (threadIdx.x == 0) {
            norm.control->blocks_done = 0;
            const u64 nonfinite = atomicAdd(&norm.control->nonfinite_gradients, (u64)0);
            *norm.nonfinite = (double)nonfinite + (is_to_drop(norm) ? 1.0 : 0.0);
        }
        return;
    }
    finish(norm, lanes, gridDim.x);
    if (threadIdx.x == 0) norm.control->is_dropped = is_to_drop(norm) ? 1 : 0;
}

// The same from sums over all parts, and what a tensor without own elements has to do itself.
extern "C" __global__ void __launch_bounds__(THREADS) finish_norm(const __grid_constant__ Norm norm) {
    __shared__ double lanes[CHUNK_LANES];
    __shared__ float clip_scale;
    const float scale = finish(norm, lanes, norm.place_count);
    // Thread 0 alone has the sum.
    if (threadIdx.x == 0) {
        clip_scale = scale;
        u32* const gate = norm.control->gate;
        const bool drops = gate && *norm.nonfinite != 0.0;
        norm.control->is_dropped = drops ? 1 : 0;
        if (drops) *gate = 1;
    }
    __syncthreads();
    if (!norm.maxima || norm.control->is_dropped != 0) return;
    for (u32 tensor = threadIdx.x; tensor < norm.tensor_count; tensor += THREADS) {
        if (norm.biases[tensor] != BIAS_UNSET) continue;
        const u64 end = tensor + 1 < norm.tensor_count ? norm.whole_places[tensor + 1] : norm.place_count;
        double largest = 0.0;
        for (u64 chunk = norm.whole_places[tensor]; chunk < end; chunk++) {
            largest = max(largest, norm.maxima[chunk]);
        }
        const float found = __double2float_rn(largest);
        norm.gradient_maxima[tensor] = as_bits(found);
        if (norm.tensors[tensor].length == 0) {
            // No block of the update chooses for it.
            const i32 bias = bias_for_max_gradient(__fmul_rn(found, clip_scale));
            if (bias != BIAS_UNSET) norm.biases[tensor] = bias;
        }
    }
}
