// Moves a model on to its next update on the device itself, so that a recorded step asks nothing of
// the host: the number of the update, its random keys, and the scalars of every group, with all
// counters at zero. Launched by src/advance.rs; twin of optimizer/src/scalars.rs, whose formulas and
// order of operations these are, in f64 and rounded once.
//
// Grid: one block of WARP threads, a thread for a group. Overwrites the control but for what a launch
// is not told, and the groups of this launch.
//
// Defines: THREADS, RULES_MAX.

#include "codec/counter_hash.cuh"
#include "prelude.cuh"
#include "table.cuh"

// What a group is updated by.
struct Rule {
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    double learning_rate;
    // Where an f32 lies that is the learning rate instead; 0 for none.
    u64 rate_address;
};

// Everything a launch is given.
struct Advance {
    Control* control;
    u64 seed;
    u32* gate;
    // The gradient norm of a step that measures none.
    double gradient_norm;
    // The first group of this launch, and how many it has; the first launch moves the update on.
    u32 first;
    u32 count;
    Rule rules[RULES_MAX];
};

// base^exponent by repeated squaring, lowest bit first.
__device__ double power(double base, u64 exponent) {
    double product = 1.0;
    double square = base;
    for (u64 rest = exponent; rest > 0; rest >>= 1) {
        if ((rest & 1) == 1) product = __dmul_rn(product, square);
        square = __dmul_rn(square, square);
    }
    return product;
}

// The largest |m| / sqrt(v) of exact moments after so many updates.
__device__ double ratio_max(const Rule& rule, u64 updates) {
    if (updates == 0) return 0.0;
    const double beta1 = rule.beta1;
    const double beta2 = rule.beta2;
    const double rho = beta1 == 0.0 ? 0.0 : __ddiv_rn(__dmul_rn(beta1, beta1), beta2);
    const double distance = __dsub_rn(1.0, rho);
    const bool is_one = (distance < 0.0 ? -distance : distance) < 1e-9;
    const double sum =
        is_one ? (double)updates : __ddiv_rn(__dsub_rn(1.0, power(rho, updates)), distance);
    const double root = __dsqrt_rn(__ddiv_rn(sum, __dsub_rn(1.0, beta2)));
    const double ratio = __dmul_rn(__dmul_rn(__dsub_rn(1.0, beta1), root), 1.0 + 1e-6);
    return ratio < 1e30 ? ratio : 1e30;
}

__device__ Group scalars(const Rule& rule, u64 update) {
    const double rate = rule.rate_address == 0
        ? rule.learning_rate
        : (double)*reinterpret_cast<const float*>(rule.rate_address);
    const double correction1 = __dsub_rn(1.0, power(rule.beta1, update));
    const double root2 = __dsqrt_rn(__dsub_rn(1.0, power(rule.beta2, update)));
    const double ratio = ratio_max(rule, update);
    const double before = ratio_max(rule, update - 1);
    Group group = {};
    group.beta1 = __double2float_rn(rule.beta1);
    group.one_minus_beta1 = __double2float_rn(__dsub_rn(1.0, rule.beta1));
    group.beta2 = __double2float_rn(rule.beta2);
    group.one_minus_beta2 = __double2float_rn(__dsub_rn(1.0, rule.beta2));
    group.eps = __double2float_rn(rule.eps);
    group.decay = __double2float_rn(__dsub_rn(1.0, __dmul_rn(rate, rule.weight_decay)));
    group.step = __double2float_rn(__ddiv_rn(rate, correction1));
    group.rms_scale = __double2float_rn(__ddiv_rn(1.0, root2));
    group.ratio_max = __double2float_rn(ratio);
    group.ratio_max_before = __double2float_rn(before);
    group.inverse_ratio_max_before =
        before > 0.0 ? __double2float_rn(__ddiv_rn(1.0, before)) : 0.0f;
    group.normalised_max = __double2float_rn(__ddiv_rn(__dmul_rn(ratio, root2), correction1));
    group.inverse_correction = __double2float_rn(__ddiv_rn(1.0, correction1));
    group.correction = __double2float_rn(correction1);
    return group;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    begin_update(const __grid_constant__ Advance argument) {
    Control* control = argument.control;
    const u64 update = control->update + (argument.first == 0 ? 1 : 0);
    __syncthreads();
    if (threadIdx.x == 0 && argument.first == 0) {
        Control next = {};
        next.update = update;
        next.keys = UpdateKeys::of(argument.seed, update);
        next.gradient_norm = argument.gradient_norm;
        next.clip_scale = 1.0f;
        next.first_nonfinite = ~0ull;
        next.gate = argument.gate;
        next.seed_low = (u32)argument.seed;
        *control = next;
    }
    Group* groups = reinterpret_cast<Group*>(control + 1) + argument.first;
    for (u32 k = threadIdx.x; k < argument.count; k += THREADS) {
        groups[k] = scalars(argument.rules[k], update);
    }
}
