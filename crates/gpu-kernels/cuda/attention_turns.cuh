// Which tasks a block has, where blocks take turns with them: attention_ring.cuh.
//
// Where TAKES is 0, a block knows all of its tasks beforehand, rotated so that each block gets long and short ones. Else
// it takes the next task when it comes to the end of one. A block that begins late, since others had its multiprocessor,
// then leaves its share to those that are there. What is found of a task does not depend on who has it.
//
// The thread that fetches takes tasks, and tells the computing threads by two places in turn: by then those have said of the task
// before the last one that they are done with its rows, and so with its place. Each block takes one number too many, with
// the last of which the count is back at 0 for the next launch.
#pragma once

#include "attention.cuh"
#include "engine.cuh"

static_assert(!TAKES || CLUSTER == 1, "blocks of a cluster would have to tell each other");

// After the other barriers of a ring: two of places for tasks, and the places.
static constexpr u32 TURN_BYTES = TAKES ? 2 * 8 + 2 * 8 : 0;
static constexpr u32 TURN_BARRIERS = TAKES ? 2 : 0;

struct Turns {
    Shared barriers;

    __device__ __forceinline__ Shared told(u32 turn) const { return barriers + turn % 2 * 8; }
    __device__ __forceinline__ Shared place(u32 turn) const { return barriers + 16 + turn % 2 * 8; }
};

// The number of a block's task, if it has one more, to the thread that fetches.
__device__ __forceinline__ bool begin_turn(u32& task, const Turns& turns, const Attention& call, u32 turn) {
#if TAKES
    task = take_number(call.taken, call.tasks + gridDim.x);
    store_shared(turns.place(turn), task);
    barrier_arrive(turns.told(turn));
#else
    const u32 clusters = gridDim.x / CLUSTER;
    task = turn * clusters + (blockIdx.x / CLUSTER + turn * call.rotation) % clusters;
#endif
    return task < call.tasks;
}

// The same to the computing threads.
__device__ __forceinline__ bool follow_turn(u32& task, const Turns& turns, const Attention& call, u32 turn) {
#if TAKES
    barrier_wait(turns.told(turn), turn / 2 & 1);
    // So that the compiler sees that it is the same for all lanes.
    task = __reduce_max_sync(0xFFFFFFFFu, load_shared(turns.place(turn)));
    return task < call.tasks;
#else
    return begin_turn(task, turns, call, turn);
#endif
}
