// The table of tensors that lets one launch work on a whole model, and the memory in which a step
// finds its scalars and leaves what it counted. src/table.rs lays the same bytes out.
//
// Addresses in the table are bytes from the bases of a launch, so one table serves flat buffers
// (a base is a buffer) and tensors that lie anywhere (a base is zero).
#pragma once

#include "codec/bias.cuh"
#include "codec/counter_hash.cuh"
#include "prelude.cuh"

// Bits of a kind, beside the format.
static constexpr u32 KIND_SPLIT = 2;
static constexpr u32 KIND_BF16_GRADIENTS = 1;
// The kinds of single formats, in a set of kinds.
static constexpr u32 BLOCK8_KINDS = 0xFu << (FORMAT_BLOCK8 * 4);
static constexpr u32 USTATE_KINDS = 0xFu << (FORMAT_USTATE1Q * 4);
static constexpr u32 N4L4_KINDS = 0xFu << (FORMAT_N4L4 * 4);
// Those that draw random words.
static constexpr u32 DRAWING_KINDS = 0xFu << (FORMAT_E4S * 4) | USTATE_KINDS | N4L4_KINDS;

struct Bases {
    u64 parameters;
    u64 remainders;
    u64 gradients;
    u64 state;
};

// One tensor. Fields that its kind has no use for are zero.
struct Tensor {
    u64 parameters;
    u64 remainders;
    u64 gradients;
    // The first and the second array of the state.
    u64 first;
    u64 second;
    u64 length;
    // How many elements all tensors before it have.
    u64 first_element;
    u32 group;
    // How many elements before the tensor its blocks begin, at a border of a wide access; LANES if
    // its arrays do not agree on one.
    u32 shift;
    // format * 4, and a bit each for split parameters and for bf16 gradients.
    u32 kind;
    // What group and place add to the keys of published random numbers.
    u32 published;
};
static_assert(sizeof(Tensor) == TENSOR_BYTES, "src/table.rs lays out the same tensor");

// What a tensor is a part of, where others have the rest: random words go by that.
struct Part {
    // The position of its first element in the whole tensor.
    u64 start;
    // The position of the whole tensor among all.
    u32 tensor;
    // The position of its numbers among those that all parts add up.
    u32 spreads;
};

// The part of a tensor that a block works on.
struct Place {
    u32 tensor;
    u32 chunk;
};

// The scalars of one group of tensors at one update.
struct alignas(16) Group {
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float eps;
    float decay;
    float step;
    float rms_scale;
    // What formats of blocks read besides.
    float ratio_max;
    float ratio_max_before;
    float inverse_ratio_max_before;
    float normalised_max;
    float inverse_correction;
    // 1 - beta1^t
    float correction;
    float padding[2];
};
static_assert(sizeof(Group) == GROUP_BYTES, "src/table.rs lays out the same group");

// What a step reads and leaves besides the tensors; the groups follow it. The host overwrites all
// of it before an update.
struct alignas(16) Control {
    u64 update;
    UpdateKeys keys;
    double gradient_norm;
    float clip_scale;
    // Blocks of the norm that are done.
    u32 blocks_done;
    u64 nonfinite;
    u64 saturated_m;
    u64 saturated_r;
    // The first element that is not finite, counted over all tensors; all ones if there is none.
    u64 first_nonfinite;
    u64 nonfinite_gradients;
    // A word that is not zero once anything was not finite: then all updates are dropped. Null where
    // they are not. The host leaves it alone.
    u32* gate;
    // Whether the norm found that the update is to be dropped.
    u32 is_dropped;
    u32 seed_low;
    u64 padding;
};
static_assert(sizeof(Control) == CONTROL_BYTES, "src/table.rs lays out the same control");

__device__ __forceinline__ Group group_at(const Control* control, u32 group) {
    return reinterpret_cast<const Group*>(control + 1)[group];
}

// The last tensor whose first block is not beyond `block`. Tensors without elements have no
// block, and so are passed over.
__device__ __forceinline__ Place search(const u32* first_blocks, u32 tensors, u32 block) {
    u32 low = 0;
    u32 high = tensors;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (first_blocks[middle] <= block) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return Place{low, block - first_blocks[low]};
}
