// What a warp does as one: products of small matrices on the tensor cores, loads of their fragments
// from shared memory, copies that run beside the arithmetic; and numbers in bf16. Each is one
// instruction of a device behind a function. A machine without a device has its own text of
// them, `shim_warp.h` of the emulator, which computes the same fragments.
//
// Fragments, with g = lane / 4 and t = lane % 4 of a warp's 32 lanes:
//
//     bf16 16 x 8 x 16    A: rows g, g + 8; columns 2t, 2t + 1 and 8 more: {a0, a1, a2, a3} =
//                            {(g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)}, two in a word
//                         B: column g; rows 2t, 2t + 1 (b0) and 8 more (b1)
//     tf32 16 x 8 x 8     A: {(g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)}
//                         B: column g; rows t (b0) and t + 4 (b1)
//     sums in f32         {(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)}
#pragma once

#include "prelude.cuh"

#if defined(__CUDACC__)

// An address in shared memory.
typedef u32 Shared;

__device__ __forceinline__ Shared shared_address(const void* pointer) {
    return (u32)__cvta_generic_to_shared(pointer);
}

// The block's shared memory that a launch asks for.
#define DYNAMIC_SHARED(NAME) extern __shared__ __align__(1024) u8 NAME[]

// sum += A B, of bf16.
__device__ __forceinline__ void mma_bf16(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// sum += A B, of f32 of which the upper 19 bits count.
__device__ __forceinline__ void mma_tf32(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 rows of 16 bytes; lane i names row i % 8 of matrix i / 8, and gets word t of
// row g of each.
__device__ __forceinline__ void load_matrices(u32 (&words)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row) : "memory");
}

// The same of the transposed matrices of 16-bit numbers.
__device__ __forceinline__ void load_matrices_transposed(u32 (&words)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row) : "memory");
}

__device__ __forceinline__ u32 load_shared(Shared address) {
    u32 word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}

__device__ __forceinline__ void store_shared(Shared address, u32 word) {
    asm volatile("st.shared.u32 [%0], %1;" : : "r"(address), "r"(word) : "memory");
}

__device__ __forceinline__ uint4 load_shared_four(Shared address) {
    uint4 words;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(address) : "memory");
    return words;
}

// Begins to copy 16 bytes into shared memory, or zeros if there is nothing to copy.
__device__ __forceinline__ void copy_begin(Shared to, u64 from, bool is_there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 : : "r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}

// Ends a group of copies.
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for this thread's copies, but those of the last GROUPS groups.
template <u32 GROUPS>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" : : "n"(GROUPS) : "memory");
}

// 2^x to about 2 units in the last place; 0 for what is subnormal.
__device__ __forceinline__ float exp2_fast(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// log2(x), as exact as exp2_fast.
__device__ __forceinline__ float log2_fast(float x) {
    float exponent;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(exponent) : "f"(x));
    return exponent;
}

// Two numbers rounded to the nearest bf16, ties to even.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// A number rounded to the nearest tf32, as the f32 bits of it.
__device__ __forceinline__ u32 round_tf32(float number) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(number));
    return bits;
}

#endif

__device__ __forceinline__ float bf16_low(u32 pair) { return as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(u32 pair) { return as_float(pair & 0xFFFF0000u); }
