// Cross-entropy over a row of logits, and its gradient in place of them. Launched by src/loss.rs.
//
//   loss = ln(sum_v exp z[v]) - z[y]      dz[v] = scale (exp(z[v]) / sum - (1 if v = y else 0))
//
// Both are 0 where the target y is no id of the vocabulary. A block takes a row of STRIDE logits, of
// which those from VOCABULARY on are left out. It reads them once and keeps them in registers, or
// reads them again where they are too many. The maximum and the sum are f32 in a fixed order. `loss_forward` writes the losses; `loss_forward_backward` also
// overwrites the logits with dz, rounded as they are stored.
//
// Grid: a block of THREADS a row.
//
// Defines: THREADS, VOCABULARY, STRIDE (a multiple of 8), ACTIVATION_BYTES.

#include "loss_row.cuh"

// Exponentials are kept too, where there are registers for them.
static constexpr bool IS_SHORT = PIECES_OF_THREAD * WIDE <= 32;

template <bool IS_BACKWARD>
__device__ __forceinline__ void visit_row(const Loss& loss) {
    __shared__ float maxima[THREADS / WARP_LANES], sums[THREADS / WARP_LANES];
    const u32 row = blockIdx.x;
    Stored* logits = loss.logits + (u64)row * STRIDE;
    const u32 target = loss.targets[row];
    if (target >= VOCABULARY) {
        if (threadIdx.x == 0) loss.losses[row] = 0.0f;
        if constexpr (IS_BACKWARD) {
            over_pieces([&](u32, u32 first) { store_numbers<WIDE>(logits + first, {}); });
        }
        return;
    }
    const float target_logit = widen(logits[target]);
    uint4 kept[UNROLLED];
    if constexpr (IS_KEPT) {
        over_pieces([&](u32 piece, u32 first) {
            kept[piece] = *reinterpret_cast<const uint4*>(logits + first);
        });
    }
    const auto z_of = [&](u32 piece, u32 first) {
        if constexpr (IS_KEPT) return numbers_of<WIDE>(kept[piece]);
        return load_numbers<WIDE>(logits + first);
    };
    float maximum = Maximum::NEUTRAL;
    over_pieces([&](u32 piece, u32 first) {
        const auto z = z_of(piece, first);
#pragma unroll
        for (u32 k = 0; k < WIDE; k++) {
            if (is_inside(first, k)) maximum = Maximum::of(maximum, z.at[k]);
        }
    });
    maximum = over_block<Maximum, THREADS>(maximum, maxima);
    // exp(z - max) = 2^(z log2(e) - max log2(e)).
    const float shift = -maximum * LOG2_E;
    Numbers<WIDE> powers[IS_SHORT ? PIECES_OF_THREAD : 1];
    float sum = 0.0f;
    over_pieces([&](u32 piece, u32 first) {
        const auto z = z_of(piece, first);
#pragma unroll
        for (u32 k = 0; k < WIDE; k++) {
            const float power = is_inside(first, k) ? quick_exp2(fmaf(z.at[k], LOG2_E, shift)) : 0.0f;
            if constexpr (IS_SHORT) powers[piece].at[k] = power;
            sum += power;
        }
    });
    sum = over_block<Sum, THREADS>(sum, sums);
    if (threadIdx.x == 0) loss.losses[row] = logf(sum) + (maximum - target_logit);
    if constexpr (IS_BACKWARD) {
        const float scale = *loss.scale;
        const float factor = __fdiv_rn(scale, sum);
        over_pieces([&](u32 piece, u32 first) {
            const auto z = z_of(piece, first);
            Numbers<WIDE> gradient;
#pragma unroll
            for (u32 k = 0; k < WIDE; k++) {
                float power;
                if constexpr (IS_SHORT) {
                    power = powers[piece].at[k];
                } else {
                    power = quick_exp2(fmaf(z.at[k], LOG2_E, shift));
                }
                gradient.at[k] = power * factor - (first + k == target ? scale : 0.0f);
            }
            store_numbers<WIDE>(logits + first, gradient);
        });
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    loss_forward(const __grid_constant__ Loss loss) {
    visit_row<false>(loss);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    loss_forward_backward(const __grid_constant__ Loss loss) {
    visit_row<true>(loss);
}
