// What every kernel starts from: number types, bit casts, wide loads, sums over a warp.
//
// There are no headers here, so that the compiler library alone suffices at run time. All
// arithmetic whose bits matter is written with the intrinsics that round as IEEE 754 says
// and are never contracted: __fmul_rn, __fadd_rn, __fsub_rn, __fmaf_rn, __fdiv_rn, __fsqrt_rn.
//
// WARP_LANES, the number of threads that vote together, arrives as a define. Kernels are
// right for any number that divides the block, 1 included.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

// Elements that a thread takes at once: one access of 16 bytes for f32.
static constexpr u32 LANES = 4;

// Four of anything.
template <class T>
struct Four {
    T at[LANES];
};

// Reads and writes device memory at an address that Rust made.
//
// On a device in so many words: from a mere number the compiler can tell neither that the memory is
// global, nor that four words are to stay together.
#if defined(__CUDACC__)
#define GLOBAL_ONE(TYPE, SUFFIX, REGISTER)                                                       \
    __device__ __forceinline__ void load(u64 address, TYPE& value) {                             \
        asm volatile("ld.global" SUFFIX " %0, [%1];"                                     \
                     : "=" REGISTER(value) : "l"(address) : "memory");                           \
    }                                                                                            \
    __device__ __forceinline__ void store(u64 address, const TYPE& value) {                      \
        asm volatile("st.global" SUFFIX " [%0], %1;"                                     \
                     : : "l"(address), REGISTER(value) : "memory");                              \
    }
GLOBAL_ONE(u16, ".u16", "h")
GLOBAL_ONE(u32, ".u32", "r")
__device__ __forceinline__ void load(u64 address, uint2& value) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y) : "l"(address) : "memory");
}
__device__ __forceinline__ void store(u64 address, const uint2& value) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};"
                 : : "l"(address), "r"(value.x), "r"(value.y) : "memory");
}
__device__ __forceinline__ void load(u64 address, uint4& value) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address) : "memory");
}
__device__ __forceinline__ void store(u64 address, const uint4& value) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 : : "l"(address), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}
#else
template <class T>
inline void load(u64 address, T& value) {
    value = *reinterpret_cast<const T*>(address);
}
template <class T>
inline void store(u64 address, const T& value) {
    *reinterpret_cast<T*>(address) = value;
}
#endif

// An element of 2 or 4 bytes in an array, as the low bits of a word.
template <u32 BYTES>
__device__ __forceinline__ u32 load_one(u64 array, u32 index) {
    if constexpr (BYTES == 4) {
        u32 bits;
        load(array + index * 4, bits);
        return bits;
    } else {
        u16 bits;
        load(array + index * 2, bits);
        return bits;
    }
}

template <u32 BYTES>
__device__ __forceinline__ void store_one(u64 array, u32 index, u32 bits) {
    if constexpr (BYTES == 4) {
        store(array + index * 4, bits);
    } else {
        store(array + index * 2, (u16)bits);
    }
}

// Four such elements from `first` on, through one wide access. An index of 64 bits lets the compiler
// leave a constant in it to the access.
template <u32 BYTES, class Index>
__device__ __forceinline__ Four<u32> load_four(u64 array, Index first) {
    const u64 address = array + first * BYTES;
    Four<u32> four;
    if constexpr (BYTES == 4) {
        uint4 raw;
        load(address, raw);
        four.at[0] = raw.x;
        four.at[1] = raw.y;
        four.at[2] = raw.z;
        four.at[3] = raw.w;
    } else {
        uint2 raw;
        load(address, raw);
        four.at[0] = raw.x & 0xFFFFu;
        four.at[1] = raw.x >> 16;
        four.at[2] = raw.y & 0xFFFFu;
        four.at[3] = raw.y >> 16;
    }
    return four;
}

template <u32 BYTES, class Index>
__device__ __forceinline__ void store_four(u64 array, Index first, const Four<u32>& four) {
    const u64 address = array + first * BYTES;
    if constexpr (BYTES == 4) {
        store(address, make_uint4(four.at[0], four.at[1], four.at[2], four.at[3]));
    } else {
        const u32 low = four.at[0] | four.at[1] << 16;
        const u32 high = four.at[2] | four.at[3] << 16;
        store(address, make_uint2(low, high));
    }
}

// Keeps the compiler from holding in registers what it read before.
__device__ __forceinline__ void forget_memory() { asm volatile("" ::: "memory"); }

__device__ __forceinline__ float as_float(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ u32 as_bits(float number) { return __float_as_uint(number); }

// Two numbers rounded to bf16, to nearest, ties to even; the first in the low half.
__device__ __forceinline__ u32 narrow_two(float low, float high) {
#if defined(__CUDACC__)
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    const auto narrow = [](float number) {
        const u32 bits = as_bits(number);
        if (number != number) return 0x7FFFu;
        return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    };
    return narrow(low) | narrow(high) << 16;
#endif
}

// 2^exponent, for exponents of normal f32 numbers.
__device__ __forceinline__ float power_of_two(i32 exponent) {
    return as_float((u32)(exponent + 127) << 23);
}

#if defined(__CUDACC__)
// The root of a number from 2^-100 to 2^60, rounded to nearest, by the steps of __fsqrt_rn, which asks
// whether it is one.
__device__ __forceinline__ float quick_root(float x) {
    float inverse;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    const float root = __fmul_rn(x, inverse);
    const float rest = __fmaf_rn(-root, root, x);
    return __fmaf_rn(rest, __fmul_rn(inverse, 0.5f), root);
}

// A quotient rounded to nearest, by the steps of __fdiv_rn: of a y from 2^-60 to 2^60, and an x that
// is zero or at least 2^-60. Where it would be infinite it is infinite or NaN.
__device__ __forceinline__ float quick_quotient(float x, float y) {
    float first;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(first) : "f"(y));
    const float inverse = __fmaf_rn(first, __fmaf_rn(-y, first, 1.0f), first);
    const float quotient = __fmul_rn(x, inverse);
    return __fmaf_rn(inverse, __fmaf_rn(-y, quotient, x), quotient);
}
#else
inline float quick_root(float x) { return __fsqrt_rn(x); }
inline float quick_quotient(float x, float y) { return __fdiv_rn(x, y); }
#endif

// The larger magnitude; of anything that is not a number it is none.
__device__ __forceinline__ float larger_magnitude(float x, float y) {
#if defined(__CUDACC__)
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(fabsf(x)), "f"(fabsf(y)));
    return larger;
#else
    // Magnitudes order as their bits do, and those of what is no number are the largest.
    const u32 a = as_bits(x) & 0x7FFFFFFFu, b = as_bits(y) & 0x7FFFFFFFu;
    return as_float(a > b ? a : b);
#endif
}

// x y + z within 0 and 1, and x y + z rounded down.
__device__ __forceinline__ float saturated(float x, float y, float z) {
#if defined(__CUDACC__)
    return __saturatef(__fmaf_rn(x, y, z));
#else
    return fminf(fmaxf(__fmaf_rn(x, y, z), 0.0f), 1.0f);
#endif
}
__device__ __forceinline__ float fused_down(float x, float y, float z) {
#if defined(__CUDACC__)
    return __fmaf_rd(x, y, z);
#else
    // Of f32 that are not far apart, exact in f64 but for what is rounded down in any case.
    const float nearest = (float)((double)x * y + z);
    return nearest > (double)x * y + z ? nextafterf(nearest, -INFINITY) : nearest;
#endif
}

// The binary logarithm of a normal number above zero, within 2^-22 of it, or of 1.
__device__ __forceinline__ float quick_log2(float x) {
#if defined(__CUDACC__)
    float log;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log) : "f"(x));
    return log;
#else
    return log2f(x);
#endif
}

// A quick inverse that may be off by its last bit.
__device__ __forceinline__ float rough_inverse(float x) {
#if defined(__CUDACC__)
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return inverse;
#else
    return 1.0f / x;
#endif
}

// The inverse of a number from 2^-125 to 2^125, rounded to nearest, by the steps of __frcp_rn.
__device__ __forceinline__ float quick_inverse(float x) {
#if defined(__CUDACC__)
    const float inverse = rough_inverse(x);
    return __fmaf_rn(inverse, -__fmaf_rn(x, inverse, -1.0f), inverse);
#else
    return __frcp_rn(x);
#endif
}

// A byte of an array.
__device__ __forceinline__ u32 load_byte(u64 address) {
#if defined(__CUDACC__)
    u32 byte;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(byte) : "l"(address) : "memory");
    return byte;
#else
    return *reinterpret_cast<const u8*>(address);
#endif
}
__device__ __forceinline__ void store_byte(u64 address, u32 byte) {
#if defined(__CUDACC__)
    asm volatile("st.global.u8 [%0], %1;" : : "l"(address), "r"(byte) : "memory");
#else
    *reinterpret_cast<u8*>(address) = (u8)byte;
#endif
}

// Until all work before this kernel is done and seen, where the kernel may begin before.
__device__ __forceinline__ void launch_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel begin as soon as there is room, if it may.
__device__ __forceinline__ void launch_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The bits of a magnitude, which order as magnitudes do, and those of infinity.
static constexpr u32 MAGNITUDE = 0x7FFFFFFFu;
static constexpr u32 INFINITE = 0x7F800000u;

// Adds to a counter in memory what the threads of a warp found. All threads of the warp take
// part; memory is touched only if there is something to add.
__device__ __forceinline__ void count(u64* counter, u32 found) {
    if (__any_sync(0xFFFFFFFFu, found != 0)) {
        const u32 sum = __reduce_add_sync(0xFFFFFFFFu, found);
        if (threadIdx.x % WARP_LANES == 0) atomicAdd(counter, (u64)sum);
    }
}
