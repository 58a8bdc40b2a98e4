// One update of packed AdamW over all tensors of a model, or some of them, in one launch. Launched by src/adamw.rs.
//
//     g  = gradient * clip_scale
//     m  = fma(beta1, m0, (1 - beta1) * g)
//     v  = fma(beta2, v0, ((1 - beta2) * g) * g)        v0 = r0 * r0 where r is stored
//     r  = sqrt(v)
//     p  = fma(-step, m / fma(r, rms_scale, eps), p0 * decay)
//
// All f32, every operation rounded to nearest, in exactly this order; then m and r (or v) are
// encoded. Overwrites parameters and state; an element whose new p or v is not finite keeps both
// and is counted.
//
// Grid: a block for every THREADS * 4 elements of every tensor, in formats of blocks for some more, and one more for a tensor whose
// first element lies between two borders of 16 bytes; a launch has those of some tensors that follow each other. One thread finds what its block works on and
// leaves it in shared memory; then every thread takes four elements, so that each array is
// read and written once, 16 bytes at a time, with all its loads on their way before the first
// is needed. What is the same for all threads is kept out of them: at full bandwidth an H200 has
// room for some 500 instructions a thread, and the arithmetic takes half of that.
//
// In formats of blocks a thread takes BLOCK_QUADS times four elements of each of some tiles, see blocks.cuh.
//
// Defines: THREADS, BLOCK_QUADS, BLOCKS_MIN (that should fit a multiprocessor), ARGUMENT_TENSORS (that the
// argument has room for; 0 if the table is in memory alone), KINDS, the set of kinds of tensors
// that are compiled in, CHECKS: whether the kernel only looks, and COPIES: whether it writes copies of parameters, which
// a model that has none does not pay for.

#include "codec/split.cuh"
#include "codec/word.cuh"
#include "prelude.cuh"
#include "table.cuh"

// Everything a launch is given.
struct Step {
    Bases bases;
    const Tensor* tensors;
    const u32* first_blocks;
    i32* biases;
    u32* gradient_maxima;
    Control* control;
    // The tables of the maps of block8.
    const u32* maps;
    // What the tensors are parts of; null where all are whole.
    const Part* parts;
    // Where blocks leave what scales follow from, for all parts to be added up; null where they move
    // scales on themselves.
    double* spreads;
    // The parameters rounded to bf16, for tensors that lie one after the other in f32; null if nobody wants them.
    u64 copies;
    u32 tensor_count;
    // Whether one element that the check found drops the update.
    u32 skips;
    // Whether codes of the maps can be looked up.
    u32 maps_are_fine;
    // Tiles of a block, in formats of blocks.
    u32 tiles;
    // The first block of the launch among those of all tensors.
    u32 first_block;
    u32 padding[3];
#if ARGUMENT_TENSORS > 0
    // The same table once more, where every multiprocessor has it at hand.
    u32 argument_first_blocks[ARGUMENT_TENSORS];
    Tensor argument_tensors[ARGUMENT_TENSORS];
#endif
};

// ---- What a block works on.

__device__ __forceinline__ Place locate(const Step& step) {
#if ARGUMENT_TENSORS > 0
    return search(step.argument_first_blocks, step.tensor_count, step.first_block + blockIdx.x);
#else
    return search(step.first_blocks, step.tensor_count, step.first_block + blockIdx.x);
#endif
}

__device__ __forceinline__ const Tensor& tensor_at(const Step& step, u32 tensor) {
#if ARGUMENT_TENSORS > 0
    return step.argument_tensors[tensor];
#else
    return step.tensors[tensor];
#endif
}

// A part of one tensor. Addresses are those of its first element, which may lie up to three before
// the tensor, so that it is at a border of a wide access.
struct Chunk {
    u64 parameters;
    u64 gradients;
    // The first and the second array of the state.
    u64 first;
    u64 second;
    u64 remainders;
#if COPIES
    // 0 where parameters are not copied.
    u64 copies;
#endif
    // In a format of blocks: its arrays from this part on.
    u64 arrays[5];
    // The whole state of the tensor, and how many elements that has.
    u64 state;
    u64 length;
    // The index of its first element in the tensor, and the lower half of that in the whole of which this is
    // a part.
    i64 index;
    u32 index_low;
    // The position of the numbers that all parts add up.
    u32 spreads;
    // Which of its elements are in the tensor.
    i32 begin;
    i32 end;
    u32 tensor;
    u32 group;
    u32 kind;
    // What group and place add to the keys of published random numbers.
    u32 published;
    // Whether this is the first part of its tensor.
    bool is_first;
    // Whether all arrays have its first element at a border of a wide access.
    bool is_wide;
    RandomStream stream;
};

#if KINDS & BLOCK_KINDS
__device__ void place_arrays(Chunk& chunk);
#endif

// What this block works on. For one of its threads.
__device__ __forceinline__ void find_chunk(const Step& step, Chunk& chunk) {
    const Place place = locate(step);
    const Tensor tensor = tensor_at(step, place.tensor);
    const bool is_in_blocks = (BLOCK_KINDS >> tensor.kind & 1) != 0;
    const i64 elements = THREADS * LANES * (is_in_blocks ? BLOCK_QUADS * step.tiles : 1);
    // Where the arrays do not agree on a border, blocks begin with the tensor.
    const bool is_wide = tensor.shift < LANES;
    const i64 index = place.chunk * elements - (is_wide ? tensor.shift : 0);
    const i64 rest = (i64)tensor.length - index;
    chunk.parameters = step.bases.parameters + tensor.parameters
        + index * (tensor.kind & KIND_SPLIT ? 2 : 4);
    chunk.gradients = step.bases.gradients + tensor.gradients
        + index * (tensor.kind & KIND_BF16_GRADIENTS ? 2 : 4);
    chunk.first = step.bases.state + tensor.first + index * 4;
    chunk.second = step.bases.state + tensor.second + index * 4;
    chunk.remainders = step.bases.remainders + tensor.remainders + index * 2;
#if COPIES
    // Half as far from the front as the parameters.
    chunk.copies = step.copies ? step.copies + tensor.parameters / 2 + index * 2 : 0;
#endif
    chunk.state = step.bases.state + tensor.first;
    chunk.length = tensor.length;
    chunk.published = tensor.published;
    chunk.index = index;
    chunk.begin = index < 0 ? (i32)-index : 0;
    chunk.end = (i32)min(rest, elements);
    chunk.tensor = place.tensor;
    chunk.group = tensor.group;
    chunk.kind = tensor.kind;
    chunk.is_first = place.chunk == 0;
    chunk.is_wide = is_wide;
    if constexpr ((KINDS & DRAWING_KINDS) != 0) {
        const Part part = step.parts ? step.parts[place.tensor] : Part{0, place.tensor, 0};
        // The elements of a block share the upper half of their index: only tensors of less than
        // 2^32 elements have a shift, and parts of others begin at borders of blocks.
        const u32 index_high = (u32)((part.start + (u64)max(index, (i64)0)) >> 32);
        chunk.stream = RandomStream(step.control->keys, part.tensor, index_high);
        chunk.index_low = (u32)((i64)part.start + index);
        chunk.spreads = part.spreads;
    }
#if KINDS & BLOCK_KINDS
    if (is_in_blocks) place_arrays(chunk);
#endif
}

// What all elements of a block have in common at one update.
struct Common {
    Group group;
    float clip_scale;
    // In a format of blocks: the largest magnitude of a parameter that quick steps may have led to.
    float quick_parameter_max;
    // Bias of the tensor.
    u32 bias;
    // Whether the update is dropped.
    bool is_dropped;
};

// While a tensor has no bias, all blocks of an update choose the same one from the largest gradient
// that the norm left, and the first keeps it.
__device__ __forceinline__ u32 choose_bias(const Step& step, const Chunk& chunk, const Common& common) {
    u32* const gradient_max = step.gradient_maxima + chunk.tensor;
    const bool keeps = chunk.is_first && threadIdx.x == 0;
    if (common.is_dropped) {
        // What a dropped gradient left must not choose a bias later.
        if (keeps) *gradient_max = 0;
        return BIAS_DEFAULT;
    }
    const i32 bias = bias_for_max_gradient(__fmul_rn(as_float(*gradient_max), common.clip_scale));
    if (bias == BIAS_UNSET) return BIAS_DEFAULT;
    if (keeps) step.biases[chunk.tensor] = bias;
    return (u32)bias;
}

template <bool UPDATES, class State>
__device__ __forceinline__ Common load_common(const Step& step, const Chunk& chunk) {
    Common common;
    common.group = group_at(step.control, chunk.group);
    common.clip_scale = step.control->clip_scale;
    const bool found_some = step.skips && step.control->nonfinite != 0;
    common.is_dropped = UPDATES && (found_some || step.control->is_dropped != 0);
    common.bias = BIAS_DEFAULT;
    if constexpr (State::HAS_BIAS) {
        const i32 stored = step.biases[chunk.tensor];
        if (stored != BIAS_UNSET) {
            common.bias = (u32)stored;
        } else if (UPDATES) {
            common.bias = choose_bias(step, chunk, common);
        }
    }
    return common;
}

// ---- Formats.

// What a format stores of one element, in its one or two arrays.
struct Stored {
    u32 first;
    u32 second;
};

// Both moments of an element.
struct Pair {
    float m;
    float v;
};

// What was counted among the elements of a thread, in one word: not finite from bit 0, saturated m
// from bit 8, saturated r from bit 16. A sum over a warp stays below 256 in each.
static constexpr u32 NONFINITE = 1;
static constexpr u32 SATURATED_M = 1 << 8;
static constexpr u32 SATURATED_R = 1 << 16;

// How a format keeps the moments of an element: one type for each. `encode` takes the new
// moments and r, the root of v, and adds what saturated to `events`.
struct Fp32State {
    static constexpr bool HAS_SECOND = true;
    static constexpr bool HAS_BIAS = false;

    __device__ Fp32State(const Chunk&, u32) {}

    __device__ Pair decode(Stored stored) const {
        return Pair{as_float(stored.first), as_float(stored.second)};
    }

    __device__ void encode(Pair moments, float, u32, Stored& stored, u32&) const {
        stored = Stored{as_bits(moments.m), as_bits(moments.v)};
    }
};

template <class Word>
struct WordState {
    static constexpr bool HAS_SECOND = false;
    Word word;

    __device__ explicit WordState(Word word) : word(word) {}

    __device__ Pair decode(Stored stored) const {
        const Moments moments = word.decode(stored.first);
        return Pair{moments.m, __fmul_rn(moments.r, moments.r)};
    }

    __device__ void encode(Pair moments, float r, u32, Stored& stored, u32& events) const {
        keep(word.encode(Moments{moments.m, r}), stored, events);
    }

  protected:
    __device__ static void keep(Packed packed, Stored& stored, u32& events) {
        stored.first = packed.word;
        if (packed.saturated_m) events += SATURATED_M;
        if (packed.saturated_r) events += SATURATED_R;
    }
};

struct Fp16State : WordState<Fp16Word> {
    static constexpr bool HAS_BIAS = false;

    __device__ Fp16State(const Chunk&, u32) : WordState(Fp16Word()) {}
};

struct E4State : WordState<E4Word> {
    static constexpr bool HAS_BIAS = true;

    __device__ E4State(const Chunk&, u32 bias) : WordState(E4Word(bias)) {}
};

struct E4sState : WordState<E4Word> {
    static constexpr bool HAS_BIAS = true;
    RandomStream stream;

    __device__ E4sState(const Chunk& chunk, u32 bias)
        : WordState(E4Word(bias)), stream(chunk.stream) {}

    __device__ void encode(Pair moments, float r, u32 index_low, Stored& stored,
                           u32& events) const {
        const u32 random = stream.word(index_low);
        keep(word.encode_stochastic(Moments{moments.m, r}, random), stored, events);
    }
};

// ---- Kinds of tensors.

// What the kind of a tensor says.
template <class STATE, bool SPLIT_PARAMETERS, bool BF16_GRADIENTS>
struct Kind {
    typedef STATE State;
    static constexpr bool SPLIT = SPLIT_PARAMETERS;
    static constexpr u32 PARAMETER_BYTES = SPLIT_PARAMETERS ? 2 : 4;
    static constexpr u32 GRADIENT_BYTES = BF16_GRADIENTS ? 2 : 4;
};

#include "elements.cuh"

// ---- The update.

__device__ __forceinline__ Pair new_moments(const Group& s, Pair before, float g) {
    const float m = __fmaf_rn(s.beta1, before.m, __fmul_rn(s.one_minus_beta1, g));
    const float v = __fmaf_rn(s.beta2, before.v, __fmul_rn(__fmul_rn(s.one_minus_beta2, g), g));
    return Pair{m, v};
}

// What an element becomes besides its moments; r is the root of v.
struct Updated {
    float p;
    float r;
};

// A parameter that has moved.
template <bool DECAYS_LAST = false>
__device__ __forceinline__ float moved(const Group& s, float p0, float direction) {
    if (DECAYS_LAST) return __fmul_rn(__fmaf_rn(-s.step, direction, p0), s.decay);
    return __fmaf_rn(-s.step, direction, __fmul_rn(p0, s.decay));
}

template <bool DECAYS_LAST = false>
__device__ __forceinline__ Updated updated(const Group& s, float p0, Pair moments) {
    const float r = __fsqrt_rn(moments.v);
    const float direction = __fdiv_rn(moments.m, __fmaf_rn(r, s.rms_scale, s.eps));
    return Updated{moved<DECAYS_LAST>(s, p0, direction), r};
}

// A number that orders what an element becomes by the larger of p and v: from INFINITE on, one of
// them is not finite. A gradient that is not finite makes m so, and m makes p so, whatever the
// denominator; v has no sign, unless it is NaN.
__device__ __forceinline__ u32 largest_of(Updated after, Pair moments) {
    return max(as_bits(after.p) & MAGNITUDE, as_bits(moments.v));
}

// Adds up what the threads of a warp found.
__device__ __forceinline__ void count_events(Control* control, u32 events) {
    if (!__any_sync(0xFFFFFFFFu, events != 0)) return;
    const u32 sum = __reduce_add_sync(0xFFFFFFFFu, events);
    if (threadIdx.x % WARP_LANES != 0) return;
    if (sum & 0xFF) {
        atomicAdd(&control->nonfinite, (u64)(sum & 0xFF));
        // Blocks of this update do not look at it any more; those of the next ones do.
        if (control->gate) *control->gate = 1;
    }
    if (sum >> 8 & 0xFF) atomicAdd(&control->saturated_m, (u64)(sum >> 8 & 0xFF));
    if (sum >> 16) atomicAdd(&control->saturated_r, (u64)(sum >> 16));
}

// Four elements as they are in memory.
struct Elements {
    Four<u32> parameters;
    Four<float> gradients;
    Four<u32> first;
    Four<u32> second;
};

// The four elements from `at` on, at a border of a wide access.
template <class Kind>
__device__ __forceinline__ Elements load_elements(const Chunk& chunk, u32 at) {
    Elements elements;
    elements.parameters = load_parameters<Kind>(chunk, at);
    elements.gradients = load_gradients<Kind>(chunk, at);
    elements.first = load_four<4>(chunk.first, at);
    elements.second = {};
    if constexpr (Kind::State::HAS_SECOND) elements.second = load_four<4>(chunk.second, at);
    return elements;
}

// Updates them, if all of them stay finite; else writes nothing. Adds what saturated to `events`. In
// two rounds, so that few numbers are alive at a time: new moments, then parameters and codes.
template <bool UPDATES, class Kind>
__device__ __forceinline__ bool visit_four(const Common& common, const Chunk& chunk, u32 at,
                                           Elements elements, u32& events) {
    const Group& group = common.group;
    const typename Kind::State state(chunk, common.bias);
    Pair moments[LANES];
#pragma unroll
    for (u32 k = 0; k < LANES; k++) {
        const float g = __fmul_rn(elements.gradients.at[k], common.clip_scale);
        const Stored stored = {elements.first.at[k], elements.second.at[k]};
        moments[k] = new_moments(group, state.decode(stored), g);
    }
    u32 largest = 0;
#pragma unroll
    for (u32 k = 0; k < LANES; k++) {
        const float p0 = as_float(elements.parameters.at[k]);
        const Updated after = updated(group, p0, moments[k]);
        largest = max(largest, largest_of(after, moments[k]));
        if constexpr (UPDATES) {
            Stored stored = {};
            const u32 index_low = chunk.index_low + at + k;
            state.encode(moments[k], after.r, index_low, stored, events);
            elements.parameters.at[k] = as_bits(after.p);
            elements.first.at[k] = stored.first;
            elements.second.at[k] = stored.second;
        }
    }
    if (largest >= INFINITE) return false;
    if constexpr (UPDATES) {
        store_parameters<Kind>(chunk, at, elements.parameters);
        store_four<4>(chunk.first, at, elements.first);
        if constexpr (Kind::State::HAS_SECOND) store_four<4>(chunk.second, at, elements.second);
    }
    return true;
}

// Updates the element at `at`, wherever it lies, or counts and names it if it would not be finite.
template <bool UPDATES, class Kind>
__device__ __forceinline__ void visit_one(const Step& step, const Chunk& chunk, u32 at, u32& events) {
    Stored stored = {load_one<4>(chunk.first, at), 0};
    if constexpr (Kind::State::HAS_SECOND) stored.second = load_one<4>(chunk.second, at);
    const Common common = load_common<UPDATES, typename Kind::State>(step, chunk);
    const Group& group = common.group;
    const typename Kind::State state(chunk, common.bias);
    const float g = __fmul_rn(load_gradient<Kind>(chunk, at), common.clip_scale);
    const Pair moments = new_moments(group, state.decode(stored), g);
    const float p0 = as_float(load_parameter<Kind>(chunk, at));
    const Updated after = updated(group, p0, moments);
    if (largest_of(after, moments) >= INFINITE) {
        events += NONFINITE;
        const u64 before = step.tensors[chunk.tensor].first_element;
        atomicMin(&step.control->first_nonfinite, before + (u64)(chunk.index + at));
    } else if constexpr (UPDATES) {
        state.encode(moments, after.r, chunk.index_low + at, stored, events);
        store_parameter<Kind>(chunk, at, as_bits(after.p));
        store_one<4>(chunk.first, at, stored.first);
        if constexpr (Kind::State::HAS_SECOND) store_one<4>(chunk.second, at, stored.second);
    }
}

// Updates the elements of a block, or only counts those that would not be finite: four of them a
// thread, at once where that is possible, or else one by one.
template <bool UPDATES, class Kind>
__device__ __forceinline__ void visit(const Step& step, const Chunk& chunk) {
    const i32 at = (i32)(threadIdx.x * LANES);
    const bool is_whole = at >= chunk.begin && at + (i32)LANES <= chunk.end;
    const bool is_wide = chunk.is_wide && is_whole;
    Elements elements;
    if (is_wide) elements = load_elements<Kind>(chunk, at);
    // The norm may still be on its way; nothing before it is.
    launch_wait();
    const Common common = load_common<UPDATES, typename Kind::State>(step, chunk);
    if (common.is_dropped) return;
    // The compiler would rather save registers than have all loads on their way at once; over this
    // it moves none.
    __syncwarp();
    u32 events = 0;
    bool is_done = false;
    if (is_wide) is_done = visit_four<UPDATES, Kind>(common, chunk, at, elements, events);
    if (!is_done) {
        events = 0;
#pragma unroll 1
        for (i32 k = at; k < at + (i32)LANES; k++) {
            // What few threads need is read again rather than kept for them.
            forget_memory();
            if (k >= chunk.begin && k < chunk.end) visit_one<UPDATES, Kind>(step, chunk, k, events);
        }
    }
    count_events(step.control, events);
}

#if KINDS & BLOCK_KINDS
#include "blocks.cuh"
#endif

// Visits a block as the kind of its tensor asks for. What no tensor of the model is of is not
// compiled.
template <bool UPDATES>
__device__ __forceinline__ void visit_kind(const Step& step, const Chunk& chunk) {
#define KIND(VISIT, FORMAT, STATE, SPLIT, BF16_GRADIENTS)                                              \
    {                                                                                           \
        constexpr u32 own = (FORMAT) * 4 + (SPLIT) * KIND_SPLIT                                 \
            + (BF16_GRADIENTS) * KIND_BF16_GRADIENTS;                                           \
        if constexpr ((KINDS >> own & 1) != 0) {                                                \
            if (KINDS == 1u << own || chunk.kind == own) {                                      \
                return VISIT<UPDATES, Kind<STATE, SPLIT, BF16_GRADIENTS>>(step, chunk);         \
            }                                                                                   \
        }                                                                                       \
    }
#define KINDS_OF(VISIT, FORMAT, STATE)       \
    KIND(VISIT, FORMAT, STATE, false, false) \
    KIND(VISIT, FORMAT, STATE, false, true)  \
    KIND(VISIT, FORMAT, STATE, true, false)  \
    KIND(VISIT, FORMAT, STATE, true, true)
    KINDS_OF(visit, FORMAT_FP32, Fp32State)
    KINDS_OF(visit, FORMAT_FP16, Fp16State)
    KINDS_OF(visit, FORMAT_E4, E4State)
    KINDS_OF(visit, FORMAT_E4S, E4sState)
#if KINDS & BLOCK_KINDS
    KINDS_OF(visit_in_blocks, FORMAT_BLOCK8, Block8State)
    KINDS_OF(visit_in_blocks, FORMAT_USTATE1Q, UStateState)
    KINDS_OF(visit_in_blocks, FORMAT_N4L4, N4l4State)
#endif
}

__device__ __forceinline__ void visit_block(const Step& step) {
    __shared__ Chunk chunk;
    if (threadIdx.x == 0) find_chunk(step, chunk);
    __syncthreads();
    visit_kind<!CHECKS>(step, chunk);
}

#if CHECKS
// Counts the elements that an update would find not finite, and writes nothing else.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_MIN)
    adamw_check(const __grid_constant__ Step step) {
    visit_block(step);
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_MIN)
    adamw_update(const __grid_constant__ Step step) {
    visit_block(step);
}
#endif
