// Cross-entropy as loss.cu has it, on devices whose copy engine brings rows ahead of time. Launched by src/loss.rs.
//
// A block takes every gridDim.x-th row. One warp has the engine fetch rows into PLACES places of shared memory and send their
// gradients back from there; the others compute, in between only with each other: `there` of a place tells that a row
// has come, `done` that all warps have left its gradient. So rows are on their way while others are computed.
//
// The maximum and the sum are f32 in a fixed order: a thread's numbers in ascending order of its pieces, lanes by halves, warps by
// halves.
//
// Grid: at most BLOCKS_MIN blocks a multiprocessor, of THREADS that compute and a warp. Shared memory: PLACES rows.
//
// Defines: THREADS, BLOCKS_MIN, PLACES, VOCABULARY, STRIDE (a multiple of 8), ACTIVATION_BYTES; FOUR_WARPS, for the device.

#include "engine.cuh"
#include "loss_row.cuh"

static constexpr u32 ROW_BYTES = STRIDE * ACTIVATION_BYTES;
static constexpr u32 PLACE_BYTES = (ROW_BYTES + 127) / 128 * 128;
static constexpr u32 WARPS = THREADS / WARP_LANES;

// Exponentials are kept in registers where there are enough.
static constexpr bool IS_SHORT = ACTIVATION_BYTES == 2 && PIECES_OF_THREAD * WIDE <= 24;
// A word of the lowest numbers.
static constexpr u32 LOWEST = ACTIVATION_BYTES == 2 ? 0xFF7FFF7Fu : 0xFF7FFFFFu;

// What warps tell each other.
struct Told {
    float maxima[WARPS];
    float sums[WARPS];
};

struct Places {
    Shared rows;
    Shared barriers;

    __device__ __forceinline__ Shared row(u32 place) const { return rows + place * PLACE_BYTES; }
    __device__ __forceinline__ Shared there(u32 place) const { return barriers + place * 16; }
    __device__ __forceinline__ Shared done(u32 place) const { return barriers + place * 16 + 8; }
};

__device__ __forceinline__ void row_begin(Shared to, const Stored* row, Shared barrier) {
    barrier_expect(barrier, ROW_BYTES);
    bytes_begin(to, row, ROW_BYTES, barrier);
}

__device__ __forceinline__ void row_send(const Stored* row, Shared from) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\t"
                 "cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group.read 0;"
                 : : "l"(row), "r"(from), "n"(ROW_BYTES) : "memory");
}

// Every computing thread has the result.
template <class Operation>
__device__ __forceinline__ float over_warps(float number, float* told) {
    const u32 lane = threadIdx.x % WARP_LANES;
    number = over_warp<Operation>(number);
    if (lane == 0) told[threadIdx.x / WARP_LANES] = number;
    named_barrier(1, THREADS);
    return over_warp<Operation>(lane < WARPS ? told[lane] : Operation::NEUTRAL);
}

__device__ __forceinline__ float load_stored(Shared at) {
#if ACTIVATION_BYTES == 2
    u16 stored;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(stored) : "r"(at) : "memory");
    return widen(stored);
#else
    return as_float(load_shared(at));
#endif
}

__device__ __forceinline__ void store_stored(Shared at, float number) {
    Stored stored;
    narrow_to(stored, number);
#if ACTIVATION_BYTES == 2
    asm volatile("st.shared.u16 [%0], %1;" : : "r"(at), "h"(stored) : "memory");
#else
    asm volatile("st.shared.f32 [%0], %1;" : : "r"(at), "f"(stored) : "memory");
#endif
}

__device__ __forceinline__ void store_piece(Shared at, const uint4& raw) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 : : "r"(at), "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w) : "memory");
}

// Numbers as they come, those beyond the vocabulary as what an exponential is nothing of.
__device__ __forceinline__ uint4 masked(uint4 raw, u32 first) {
    if (STRIDE == VOCABULARY || first + WIDE <= VOCABULARY) return raw;
    u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (u32 word = 0; word < 4; word++) {
#if ACTIVATION_BYTES == 2
        if (first + 2 * word >= VOCABULARY) words[word] = (words[word] & 0xFFFF0000u) | 0xFF80u;
        if (first + 2 * word + 1 >= VOCABULARY) words[word] = (words[word] & 0xFFFFu) | 0xFF800000u;
#else
        if (first + word >= VOCABULARY) words[word] = 0xFF800000u;
#endif
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// The larger numbers of two words, number by number; NaN wins.
__device__ __forceinline__ u32 larger(u32 a, u32 b) {
    u32 both;
#if ACTIVATION_BYTES == 2
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
#else
    asm("max.NaN.f32 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
#endif
    return both;
}

// The largest number of a word.
__device__ __forceinline__ float largest(u32 word) {
#if ACTIVATION_BYTES == 2
    return Maximum::of(as_float(word << 16), as_float(word & 0xFFFF0000u));
#else
    return as_float(word);
#endif
}

// The loss of a row in a place, and its gradient in place of it.
template <bool IS_BACKWARD>
__device__ __forceinline__ void visit_row(const Loss& loss, u32 row, Shared place, Told& told) {
    const u32 target = loss.targets[row];
    if (target >= VOCABULARY) {
        if (threadIdx.x == 0) loss.losses[row] = 0.0f;
        if constexpr (IS_BACKWARD) {
            over_pieces([&](u32, u32 first) {
                store_piece(place + first * ACTIVATION_BYTES, make_uint4(0, 0, 0, 0));
            });
        }
        return;
    }
    // The thread that has the target.
    const bool has_target = target / WIDE % THREADS == threadIdx.x;
    const Shared target_place = place + target * ACTIVATION_BYTES;
    const float target_logit = has_target ? load_stored(target_place) : 0.0f;
    uint4 kept[PIECES_OF_THREAD];
    u32 maxima = LOWEST;
    over_pieces([&](u32 piece, u32 first) {
        const uint4 raw = masked(load_shared_four(place + first * ACTIVATION_BYTES), first);
        kept[piece] = raw;
        maxima = larger(larger(maxima, larger(raw.x, raw.y)), larger(raw.z, raw.w));
    });
    const float maximum = over_warps<Maximum>(largest(maxima), told.maxima);
    // exp(z - max) = 2^(z log2(e) - max log2(e)).
    const float shift = -maximum * LOG2_E;
    Numbers<WIDE> powers[IS_SHORT ? PIECES_OF_THREAD : 1];
    float sum = 0.0f;
    over_pieces([&](u32 piece, u32) {
        const auto z = numbers_of<WIDE>(kept[piece]);
#pragma unroll
        for (u32 k = 0; k < WIDE; k++) {
            const float power = quick_exp2(fmaf(z.at[k], LOG2_E, shift));
            if constexpr (IS_SHORT) powers[piece].at[k] = power;
            sum += power;
        }
    });
    sum = over_warps<Sum>(sum, told.sums);
    if (has_target) loss.losses[row] = logf(sum) + (maximum - target_logit);
    if constexpr (IS_BACKWARD) {
        const float scale = *loss.scale, factor = __fdiv_rn(scale, sum);
        over_pieces([&](u32 piece, u32 first) {
            const auto z = numbers_of<WIDE>(kept[piece]);
            Numbers<WIDE> gradient;
#pragma unroll
            for (u32 k = 0; k < WIDE; k++) {
                if constexpr (IS_SHORT) {
                    gradient.at[k] = powers[piece].at[k] * factor;
                } else {
                    gradient.at[k] = quick_exp2(fmaf(z.at[k], LOG2_E, shift)) * factor;
                }
            }
            store_piece(place + first * ACTIVATION_BYTES, packed(gradient));
        });
        if (has_target) {
            const float power = quick_exp2(fmaf(target_logit, LOG2_E, shift));
            store_stored(target_place, power * factor - scale);
        }
    }
}

template <bool IS_BACKWARD>
__device__ __forceinline__ void visit_rows(const Loss& loss) {
    DYNAMIC_SHARED(rows);
    __shared__ u64 barriers[2 * PLACES];
    __shared__ Told told;
    const Places places = {shared_address(rows), shared_address(barriers)};
    if (threadIdx.x == 0) {
        for (u32 place = 0; place < PLACES; place++) {
            barrier_set(places.there(place), 1);
            barrier_set(places.done(place), WARPS);
        }
        barriers_publish();
    }
    __syncthreads();
    const auto row_at = [&](u32 row) { return loss.logits + (u64)row * STRIDE; };
    if (threadIdx.x >= THREADS) {
        if (threadIdx.x > THREADS) return;
        u32 ahead = blockIdx.x;
        for (u32 place = 0; place < PLACES && ahead < loss.rows; place++, ahead += gridDim.x) {
            row_begin(places.row(place), row_at(ahead), places.there(place));
        }
        u32 turn = 0;
        for (u32 row = blockIdx.x; row < loss.rows; row += gridDim.x, turn++) {
            const u32 place = turn % PLACES;
            barrier_wait(places.done(place), turn / PLACES & 1);
            if (IS_BACKWARD) row_send(row_at(row), places.row(place));
            if (ahead < loss.rows) row_begin(places.row(place), row_at(ahead), places.there(place));
            ahead += gridDim.x;
        }
        // Before the shared memory goes.
        if (IS_BACKWARD) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        return;
    }
    u32 turn = 0;
    for (u32 row = blockIdx.x; row < loss.rows; row += gridDim.x, turn++) {
        const u32 place = turn % PLACES;
        barrier_wait(places.there(place), turn / PLACES & 1);
        visit_row<IS_BACKWARD>(loss, row, places.row(place), told);
        // The copy engine sees what was stored.
        if (IS_BACKWARD) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (threadIdx.x % WARP_LANES == 0) barrier_arrive(places.done(place));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + WARP_LANES, BLOCKS_MIN)
    loss_ring_forward(const __grid_constant__ Loss loss) {
    visit_rows<false>(loss);
}

extern "C" __global__ void __launch_bounds__(THREADS + WARP_LANES, BLOCKS_MIN)
    loss_ring_forward_backward(const __grid_constant__ Loss loss) {
    visit_rows<true>(loss);
}
