// The chain from attention to the attention before it, backward: the gradients of the first layer of a block's
// input and of the LayerNorm before it, of the feed-forward branch of the block before, and of its attention's
// output. How it is made: chain.cuh; launched by src/chain.rs.
//
//   d_out1 = left W1^T       d_x1 = norm's gradient of d_out1 + d_residual     without FIRST_PIECES d_x1 is left
//   d_z = (d_x1 W2^T) gelu'(z)
//   d_out2 = d_z W3^T        d_x2 = norm's gradient of d_out2 + d_x1
//   d_attention = d_x2 W4^T
//
// left [rows, 64 FIRST_PIECES] or [rows, C], d_x, d_residual, d_attention [rows, C], z and d_z [rows, 4 C]; W [columns,
// depth]. d_x, d_z and d_attention are overwritten, as are what branch_backward.cu leaves in `partials` of each norm, and the
// pairs of attention_start.cu.
//
// Grid: clusters of C / 64 blocks of CHAIN_THREADS, one for every 64 rows.
//
// Defines: GELU_SCALE, GELU_CUBIC, and those of chain.cuh.

#include "attention_pairs.cuh"
#include "chain.cuh"
#include "gelu.cuh"
#include "norm_backward.cuh"

// The beginning of a branch.
struct Start {
    const Stored* x;
    const float* statistics;
    const float* gain;
    float* partials;
};

struct Backward {
    Factors factors;
    TensorMap d_z;
    TensorMap d_x2;
    TensorMap d_attention;
    Start starts[2];
    Stored* d_x1;
    const Stored* d_residual;
    const Stored* z;
    AttentionRows attention;
    u32 rows;
};

__device__ __forceinline__ void load(NormTerms& terms, const Chain& chain, const Backward& call, u32 which) {
    const Start& start = call.starts[which];
    const Stored* d_residual = which == 0 || FIRST_PIECES == 0 ? call.d_residual : call.d_x1;
    load_terms(terms, start.x, start.statistics, start.gain, d_residual, chain.row(), chain.column(chain.rank),
               call.rows);
}

// The gradients of the LayerNorm and the residual sum, which go on as rows that all blocks have.
template <u32 WHICH>
__device__ __forceinline__ void start_branch(const float (&sums)[8][4], const NormTerms& terms, const Chain& chain,
                                             const Backward& call) {
    const Start& start = call.starts[WHICH];
    Pair g[8][2], d_x[8][2], found[2], all[2][BLOCKS];
    gradient_sums(g, found, sums, terms);
    tell<BLOCKS>(chain.exchange(WHICH), threadIdx.x % GROUP_THREADS == 0, found);
    be_told(chain.exchange(WHICH), all);
    input_gradient(d_x, g, all, terms, chain.row(), call.rows);
    const auto gradient = [&](u32 i, u32 half) { return d_x[i][half]; };
    share_rows(chain, WHICH, gradient);
    if constexpr (WHICH == 0) {
        save_visibly(call.d_x1, chain.of_warp(chain.rows(0)), chain, CHANNELS, chain.rank, call.rows);
    } else {
        save_rows(call.d_x2, chain.of_warp(chain.rows(0)), chain, chain.rank);
    }

    __syncwarp();
    warp_column_sums(chain.left(), d_x, sums, terms, chain.g, chain.t);
    named_barrier(2 + chain.group, GROUP_THREADS);
    float* partials = start.partials + (u64)(blockIdx.x / BLOCKS) * COLUMN_SUMS * CHANNELS;
    store_column_sums(partials, chain.left() - chain.warp * WARP_ROWS_BYTES, WARP_ROWS_BYTES, chain.rank * TILE);
    send_wait();
    named_barrier(2 + chain.group, GROUP_THREADS);
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(CHAIN_THREADS, 1)
    chain_backward(const __grid_constant__ Backward call) {
    DYNAMIC_SHARED(shared);
    Chain chain = chain_of_thread(shared);
    if (!begin(chain, call.factors)) return;
    float sums[8][4];
    if (FIRST_PIECES > 0 && chain.group == 0) {
        NormTerms terms;
        load(terms, chain, call, 0);
        multiply_first(sums, chain);
        cluster_wait();
        start_branch<0>(sums, terms, chain, call);
    } else {
        cluster_wait();
    }
#pragma unroll 1
    for (u32 tile = (chain.group + GROUPS - 1) % GROUPS; tile < HIDDEN_TILES; tile += GROUPS) {
        const u32 column = chain.column(chain.hidden_tile(tile));
        StoredPair z[8][2];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 at = chain.row() + 8 * half < call.rows ? chain.row() + 8 * half : 0;
#pragma unroll
            for (u32 i = 0; i < 8; i++) z[i][half] = load_stored(call.z + (u64)at * HIDDEN + column + 8 * i);
        }
        multiply_second(sums, chain, tile);
        leave_hidden(call.d_z, chain, tile, [&](u32 i, u32 half) {
            const Pair of = widen_pair(z[i][half]);
            float gradients[2];
            gelu_gradients(gradients, of.low, of.high);
            return Pair{sums[i][2 * half] * gradients[0], sums[i][2 * half + 1] * gradients[1]};
        }, [] {});
    }
    NormTerms terms;
    if (third_product(sums, chain, [&] { load(terms, chain, call, 1); })) start_branch<1>(sums, terms, chain, call);
    // The next group begins.
#pragma unroll 1
    for (u32 tile = (chain.group + 2 * GROUPS - LAST_GROUP - 1) % GROUPS; tile < LAST_TILES; tile += GROUPS) {
        const u32 head = chain.last_tile(tile);
        AttentionTerms of_head;
        load_terms(of_head, call.attention, chain.row(), chain.column(head), BLOCKS, head, call.rows);
        multiply_last(sums, chain, tile);
        const auto d_out = [&](u32 i, u32 half) { return rounded(Pair{sums[i][2 * half], sums[i][2 * half + 1]}); };
        store_tile(call.d_attention, chain, head, d_out);
        store_pairs(call.attention, of_head, chain.row(), chain.t, BLOCKS, head, call.rows, d_out);
    }
    send_wait();
}
