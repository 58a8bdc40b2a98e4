// What kernel sources need to be compiled by g++ for this machine: qualifiers, built-in variables,
// intrinsics, and a launch that runs the threads of a grid one after the other.
//
// Threads are plain calls, block by block. A kernel with barriers is compiled with SHIM_BARRIERS:
// then each thread of a block has a stack of its own, and a barrier hands over to the next one.
// A warp is one thread here, which kernels allow for; but for a kernel compiled with SHIM_WARPS it
// is 32 of them, and `shim_warp.h` has what they do as one.
#pragma once

#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct ShimIndex {
    unsigned x;
};
static ShimIndex threadIdx, blockIdx, gridDim;

template <class T> inline T __ldca(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline void __stcs(T* p, T value) { *p = value; }
template <class T> inline void __stwb(T* p, T value) { *p = value; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }
template <class T> inline T min(T a, T b) { return b < a ? b : a; }

inline float __uint_as_float(unsigned bits) {
    float number;
    memcpy(&number, &bits, 4);
    return number;
}
inline unsigned __float_as_uint(float number) {
    unsigned bits;
    memcpy(&bits, &number, 4);
    return bits;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
// Of numbers above zero: exact in f64 but for far smaller ones, which round down alike.
inline float __fadd_rz(float a, float b) {
    const double sum = (double)a + b;
    const float nearest = (float)sum;
    return nearest > sum ? nextafterf(nearest, 0.0f) : nearest;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (by & 31));
}
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline long long __double_as_longlong(double a) { long long bits; memcpy(&bits, &a, 8); return bits; }
inline float __double2float_rn(double a) { return (float)a; }
inline float __int2float_rn(int a) { return (float)a; }
// Truncates, saturating, as the device does; the plain cast leaves large numbers undefined.
inline int __float2int_rz(float a) {
    if (!(a > -2147483648.0f)) return a != a ? 0 : -2147483647 - 1;
    return a < 2147483648.0f ? (int)a : 2147483647;
}

inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; i++) {
        result |= (unsigned)(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xFF) << (8 * i);
    }
    return result;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(bits); }

#if !SHIM_WARPS
inline bool __any_sync(unsigned, bool vote) { return vote; }
inline unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned) { return value; }
inline unsigned __reduce_add_sync(unsigned, unsigned value) { return value; }
inline void __syncwarp() {}
#endif
inline void __threadfence() {}
template <class T> inline T atomicAdd(T* p, T value) {
    const T before = *p;
    *p += value;
    return before;
}
template <class T> inline T atomicMin(T* p, T value) {
    const T before = *p;
    if (value < before) *p = value;
    return before;
}
template <class T> inline T atomicMax(T* p, T value) {
    const T before = *p;
    if (before < value) *p = value;
    return before;
}

// The shared memory that launches ask for, spoilt before each block.
static const size_t SHIM_SHARED_MAX = 232448;
alignas(1024) static unsigned char shim_shared[SHIM_SHARED_MAX];

[[noreturn]] inline void shim_fail(const char* message) {
    fprintf(stderr, "the emulated device: %s\n", message);
    abort();
}

#if SHIM_BARRIERS
// What a thread that has left waits for: the rest of its warp, or something that it looks for again and again.
enum ShimWait { SHIM_NOTHING, SHIM_AT_WARP };

// The threads of a block on stacks of their own, which serve one block after the other. Control
// goes from the block to a thread and back by jumps, which cost next to nothing.
struct ShimThread {
    jmp_buf at;
    ucontext_t start;
    std::vector<char> stack;
    bool is_started;
    bool is_done;
    ShimWait waits;
    // Meetings of its warp so far.
    unsigned meetings;
};
static ShimThread shim_threads[1024];
static jmp_buf shim_block;
static void (*shim_body)();
// Grows whenever something happened that others may wait for.
static unsigned long shim_progress;

__attribute__((noinline)) static void shim_leave(ShimThread& thread) {
    if (!_setjmp(thread.at)) _longjmp(shim_block, 1);
}

__attribute__((noinline)) static void shim_enter(ShimThread& thread) {
    if (!_setjmp(shim_block)) _longjmp(thread.at, 1);
}

__attribute__((noinline)) static void shim_enter_first(ShimThread& thread) {
    if (!_setjmp(shim_block)) setcontext(&thread.start);
}

// Lets others run until `is_so`.
template <class Condition> inline void shim_wait_until(Condition is_so) {
    const unsigned self = threadIdx.x;
    while (!is_so()) {
        shim_leave(shim_threads[self]);
        threadIdx.x = self;
    }
}

// A barrier that so many threads wait at before any goes on.
struct ShimMeeting {
    unsigned arrived, times;

    void open_if(unsigned all) {
        if (arrived < all || all == 0) return;
        arrived = 0;
        times++;
        shim_progress++;
    }
    void wait(unsigned all) {
        const unsigned before = times;
        arrived++;
        open_if(all);
        shim_wait_until([&] { return times != before; });
    }
};
// That of all threads which are not done.
static ShimMeeting shim_of_all;
static unsigned shim_left;
// Those of some threads, by name; a block may leave one with arrivals that nobody waits for.
static ShimMeeting shim_named[16];

inline void __syncthreads() { shim_of_all.wait(shim_left); }

static void shim_thread() {
    for (;;) {
        const unsigned self = threadIdx.x;
        shim_body();
        shim_threads[self].is_done = true;
        shim_progress++;
        shim_of_all.open_if(--shim_left);
        shim_leave(shim_threads[self]);
    }
}

static void shim_make_threads(unsigned threads) {
    for (ShimMeeting& meeting : shim_named) meeting = {};
    for (unsigned i = 0; i < threads; i++) {
        ShimThread& thread = shim_threads[i];
        thread.is_done = false;
        thread.waits = SHIM_NOTHING;
        if (!thread.stack.empty()) continue;
        thread.stack.resize(1 << 15);
        getcontext(&thread.start);
        thread.start.uc_stack.ss_sp = thread.stack.data();
        thread.start.uc_stack.ss_size = thread.stack.size();
        thread.start.uc_link = nullptr;
        makecontext(&thread.start, shim_thread, 0);
    }
}

// Runs a thread until it leaves.
static void shim_run_thread(unsigned i) {
    ShimThread& thread = shim_threads[i];
    threadIdx.x = i;
    if (thread.is_started) {
        shim_enter(thread);
    } else {
        thread.is_started = true;
        shim_enter_first(thread);
    }
}

// Takes the threads of a warp, which may be one, as far as they come without others.
static void shim_run_warp(unsigned first, unsigned lanes) {
    for (;;) {
        unsigned at_warp = 0;
        for (unsigned i = first; i < first + lanes; i++) {
            const ShimThread& thread = shim_threads[i];
            if (!thread.is_done && thread.waits == SHIM_NOTHING) shim_run_thread(i);
            at_warp += !thread.is_done && thread.waits == SHIM_AT_WARP;
        }
        if (at_warp < lanes) return;
        shim_progress++;
        for (unsigned i = first; i < first + lanes; i++) shim_threads[i].waits = SHIM_NOTHING;
    }
}

static void shim_run_block(unsigned threads) {
    const unsigned lanes = SHIM_WARPS ? 32 : 1;
    if (threads % lanes != 0) shim_fail("a block of parts of warps");
    shim_make_threads(threads);
    shim_left = threads;
    while (shim_left > 0) {
        const unsigned long before = shim_progress;
        for (unsigned i = 0; i < threads; i += lanes) shim_run_warp(i, lanes);
        // In two rounds all have looked for what the others did.
        for (unsigned i = 0; i < threads && shim_progress == before; i += lanes) shim_run_warp(i, lanes);
        if (shim_progress == before) shim_fail("all threads wait for others");
    }
}
#else
inline void __syncthreads() { abort(); }
static void (*shim_body)();
static void shim_run_block(unsigned threads) {
    for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) shim_body();
}
#endif

#if SHIM_WARPS
#include "shim_warp.h"
#endif

// A kernel with one parameter, which lies at `parameter`.
template <class Argument, void (*KERNEL)(Argument)>
struct ShimKernel {
    static const Argument* argument;
    static void body() { KERNEL(*argument); }
    static void run(unsigned blocks, unsigned threads, unsigned shared, const void* parameter) {
        argument = static_cast<const Argument*>(parameter);
        shim_body = body;
        gridDim.x = blocks;
        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
            if (shared > 0) memset(shim_shared, 0xFF, SHIM_SHARED_MAX);
            shim_run_block(threads);
            if (shared == 0) continue;
            for (size_t i = shared; i < SHIM_SHARED_MAX; i++) {
                if (shim_shared[i] != 0xFF) shim_fail("a store beyond the shared memory asked for");
            }
        }
    }
};
template <class Argument, void (*KERNEL)(Argument)>
const Argument* ShimKernel<Argument, KERNEL>::argument;

// What the emulated driver finds in a module.
struct ShimEntry {
    const char* name;
    size_t parameter_bytes;
    void (*run)(unsigned blocks, unsigned threads, unsigned shared, const void* parameter);
    // What a thread is said to have that did not fit registers.
    int local_bytes;
};
#ifndef SHIM_LOCAL_BYTES
#define SHIM_LOCAL_BYTES 0
#endif
template <class Argument> Argument shim_argument(void (*)(Argument));
#define SHIM_ENTRY(KERNEL)                                        \
    {#KERNEL, sizeof(decltype(shim_argument(KERNEL))),            \
     ShimKernel<decltype(shim_argument(KERNEL)), KERNEL>::run, SHIM_LOCAL_BYTES}
