// Barriers in shared memory, and the copy engine that brings bytes there, on devices of compute capability 9.0.
#pragma once

#include "mma.cuh"

// What the copy engine knows of a matrix; made by the driver.
struct alignas(64) TensorMap {
    u64 words[16];
};

#if defined(__CUDACC__)

__device__ __forceinline__ void barrier_set(Shared barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(count) : "memory");
}

// Makes barriers that were set known to all who may use them, but for the threads of the block.
__device__ __forceinline__ void barriers_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and makes the barrier wait for so many bytes.
__device__ __forceinline__ void barrier_expect(Shared barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 : : "r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(Shared barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}

// Waits for the end of a phase, of which the first has parity 0.
__device__ __forceinline__ void barrier_wait(Shared barrier, u32 parity) {
    asm volatile("{\n\t.reg .pred done;\n\tagain:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@done bra over;\n\tbra again;\n\tover:\n\t}"
                 : : "r"(barrier), "r"(parity) : "memory");
}

// Begins to copy bytes that lie side by side; addresses and number are multiples of 16.
__device__ __forceinline__ void bytes_begin(Shared to, const void* from, u32 bytes, Shared barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 : : "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

__device__ __forceinline__ void named_barrier(u32 name, u32 threads) {
    asm volatile("bar.sync %0, %1;" : : "r"(name), "r"(threads) : "memory");
}

#endif
