// The chain from attention to the next attention, forward: the end of the attention branch, the feed-forward
// branch, and the first layer of the next block. How it is made: chain.cuh; launched by src/chain.rs.
//
//   x1 = residual + left W1 + b1        normed1 = norm(x1)
//   z = normed1 W2 + b2                 hidden = gelu(z)
//   x2 = x1 + hidden W3 + b3            normed2 = norm(x2)
//   out = normed2 W4 + b4               if LAST_TILES
//
// left, residual, x and normed [rows, C], z and hidden [rows, 4 C], out [rows, 3 C]; W [depth, columns]. All but left and
// residual are overwritten. GELU is of z before it is rounded.
//
// Grid: clusters of C / 64 blocks of CHAIN_THREADS, one for every 64 rows.
//
// Defines: EPSILON, GELU_SCALE, GELU_CUBIC, and those of chain.cuh.

#include "chain.cuh"
#include "gelu.cuh"
#include "norm_forward.cuh"

// The end of a branch.
struct End {
    const Stored* layer_bias;
    const float* gain_bias;
    float* statistics;
};

struct Forward {
    Factors factors;
    TensorMap normed[2];
    TensorMap x2;
    TensorMap z;
    TensorMap hidden;
    TensorMap out;
    End ends[2];
    Stored* x1;
    const Stored* residual;
    const Stored* up_bias;
    const Stored* last_bias;
    u32 rows;
};

__device__ __forceinline__ void load(BranchTerms& terms, const Chain& chain, const Forward& call, u32 which) {
    const Stored* residual = which == 0 ? call.residual : call.x1;
    const End& end = call.ends[which];
    load_terms(terms, residual, end.layer_bias, end.gain_bias, chain.row(), chain.column(chain.rank), call.rows);
}

// The residual sum and its LayerNorm, which go on as rows that all blocks have.
template <u32 WHICH>
__device__ __forceinline__ void end_branch(const float (&sums)[8][4], const BranchTerms& terms, const Chain& chain,
                                           const Forward& call) {
    const End& end = call.ends[WHICH];
    Pair x[8][2], found[2], all[2][BLOCKS];
    residual_sum(x, found, sums, terms);
    tell<BLOCKS>(chain.exchange(WHICH), threadIdx.x % GROUP_THREADS == 0, found);
    const auto sum = [&](u32 i, u32 half) { return x[i][half]; };
    send_wait();
    __syncwarp();
    put_rows(chain.left(), chain, sum);
    be_told(chain.exchange(WHICH), all);
    const Pair of_rows[2] = {moments(all[0]), moments(all[1])};
    const auto out = [&](u32 i, u32 half) {
        return normed(x[i][half], of_rows[half], terms.gain[i], terms.bias[i]);
    };
    if constexpr (WHICH == 0 || LAST_TILES > 0) {
        share_rows(chain, WHICH, out);
        save_rows(call.normed[WHICH], chain.of_warp(chain.rows(0)), chain, chain.rank);
        // Stores to memory would hold the rows up.
        if constexpr (WHICH == 0) {
            save_visibly(call.x1, chain.left(), chain, CHANNELS, chain.rank, call.rows);
        } else {
            save_rows(call.x2, chain.left(), chain, chain.rank);
        }
    } else {
        group_publish();
        __syncwarp();
        save_rows(call.x2, chain.left(), chain, chain.rank);
        store_tile(call.normed[WHICH], chain, chain.rank, out);
    }
    if (chain.rank == 0 && chain.t == 0) store_moments(end.statistics, of_rows, chain.row(), call.rows);
    send_wait();
    __syncwarp();
}

// Biases of the thread's columns of a tile.
__device__ __forceinline__ void load_biases(StoredPair (&biases)[8], const Stored* from, u32 column) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) biases[i] = load_stored(from + column + 8 * i);
}

// Sums with their biases.
__device__ __forceinline__ Pair biased(const float (&sums)[8][4], const StoredPair (&biases)[8], u32 i, u32 half) {
    const Pair bias = widen_pair(biases[i]);
    return {sums[i][2 * half] + bias.low, sums[i][2 * half + 1] + bias.high};
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(CHAIN_THREADS, 1)
    chain_forward(const __grid_constant__ Forward call) {
    DYNAMIC_SHARED(shared);
    Chain chain = chain_of_thread(shared);
    if (!begin(chain, call.factors)) return;
    float sums[8][4];
    if (chain.group == 0) {
        BranchTerms terms;
        load(terms, chain, call, 0);
        multiply_first(sums, chain);
        cluster_wait();
        end_branch<0>(sums, terms, chain, call);
    } else {
        cluster_wait();
    }
#pragma unroll 1
    for (u32 tile = (chain.group + GROUPS - 1) % GROUPS; tile < HIDDEN_TILES; tile += GROUPS) {
        const u32 at = chain.hidden_tile(tile);
        StoredPair biases[8];
        load_biases(biases, call.up_bias, chain.column(at));
        multiply_second(sums, chain, tile);
        const auto z = [&](u32 i, u32 half) { return biased(sums, biases, i, half); };
        send_wait();
        __syncwarp();
        const auto gelu = [&](u32 i, u32 half) {
            const Pair both = z(i, half);
            float out[2];
            gelus(out, both.low, both.high);
            return Pair{out[0], out[1]};
        };
        leave_hidden(call.hidden, chain, tile, gelu, [&] { put_rows(chain.left(), chain, z); });
        save_rows(call.z, chain.left(), chain, at);
    }
    BranchTerms terms;
    if (third_product(sums, chain, [&] { load(terms, chain, call, 1); })) end_branch<1>(sums, terms, chain, call);
    // The next group begins.
#pragma unroll 1
    for (u32 tile = (chain.group + 2 * GROUPS - LAST_GROUP - 1) % GROUPS; tile < LAST_TILES; tile += GROUPS) {
        const u32 at = chain.last_tile(tile);
        StoredPair biases[8];
        load_biases(biases, call.last_bias, chain.column(at));
        multiply_last(sums, chain, tile);
        store_tile(call.out, chain, at, [&](u32 i, u32 half) { return biased(sums, biases, i, half); });
    }
    send_wait();
}
