// Barriers in shared memory, the copy engine that brings pieces of matrices there, and registers that warps give each
// other, on devices of compute capability 9.0. The emulator has its own text of these.
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

// Begins to copy a piece of matrix z from column x, row y on; zeros where there is no matrix.
__device__ __forceinline__ void piece_begin(Shared to, const TensorMap& map, u32 x, u32 y, u32 z, Shared barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];"
                 : : "r"(to), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}

// Begins to copy bytes that lie side by side; addresses and number are multiples of 16.
__device__ __forceinline__ void bytes_begin(Shared to, const void* from, u32 bytes, Shared barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 : : "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// The next of `numbers` numbers, which a count in memory gives out, and then is 0 again; by the first lane of a warp
// alone. What is reduced lies in a register that all lanes share, as the copy engine wants what follows from it.
__device__ __forceinline__ u32 take_number(u32* count, u32 numbers) {
    return __reduce_max_sync(1u, atomicInc(count, numbers - 1));
}

__device__ __forceinline__ void named_barrier(u32 name, u32 threads) {
    asm volatile("bar.sync %0, %1;" : : "r"(name), "r"(threads) : "memory");
}

// Arrives at a barrier at which others wait.
__device__ __forceinline__ void named_arrive(u32 name, u32 threads) {
    asm volatile("bar.arrive %0, %1;" : : "r"(name), "r"(threads) : "memory");
}

// Gives registers of a group of four warps to others, or takes some, so that each of its threads has that many.
template <u32 REGISTERS_OF_THREAD = 24>
__device__ __forceinline__ void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(REGISTERS_OF_THREAD) : "memory");
}
template <u32 REGISTERS_OF_THREAD>
__device__ __forceinline__ void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(REGISTERS_OF_THREAD) : "memory");
}

// Two halves of a barrier of all threads of the cluster: nobody reaches for the shared memory of a block that
// has not begun.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

// The same place in the shared memory of a block of the cluster.
__device__ __forceinline__ Shared place_of(Shared own, u32 block) {
    Shared other;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(own), "r"(block));
    return other;
}

// Sends four numbers to a place in the shared memory of a block of the cluster, where they count at a barrier.
__device__ __forceinline__ void send(Shared to, Shared barrier, float a, float b, float c, float d) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 : : "r"(to), "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier) : "memory");
}

#endif
