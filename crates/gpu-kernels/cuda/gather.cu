// The next batch of training rows out of ranges of tapes in memory of the device, by a schedule that
// says where each row lies. Launched by src/gather.rs.
//
//     tokens[b, t]  = ids[start + t]        and 0 from t = count on
//     targets[b, t] = ids[start + t + 1]    and IGNORED from t = count on
//
// with start and count from the row's entry. The schedule begins with the number of the update that
// comes next; the launch for an update's last batch raises it, so that a replay finds the rows of the
// next update without a word of the host.
//
// Grid: one block of THREADS, since the number must be read by all before it is raised. Overwrites tokens and
// targets, both `[rows, time]`.
//
// Defines: THREADS, IGNORED.

#include "prelude.cuh"

struct Gather {
    u32* tokens;
    u32* targets;
    const u32* ids;
    u64 ids_length;
    // The update that comes next, and then a start and a count for every row of every update.
    u32* schedule;
    u32 rows;
    u32 time;
    // The first row of the batch among those of the update, and how many the update has.
    u32 first_row;
    u32 update_rows;
    // Updates that the schedule has room for.
    u32 updates;
    u32 advances;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gather(const __grid_constant__ Gather args) {
    const u32 update = args.schedule[0];
    // Nothing is read beyond either end, whatever the schedule says.
    const bool is_planned = update < args.updates;
    const u64 first_row = (u64)update * args.update_rows + args.first_row;
    const u32* const entries = args.schedule + 1 + 2 * first_row;
    for (u32 at = threadIdx.x; at < args.rows * args.time; at += THREADS) {
        const u32 row = at / args.time;
        const u64 t = at - row * args.time;
        const u64 start = is_planned ? entries[2 * row] : 0;
        const u64 count = is_planned ? entries[2 * row + 1] : 0;
        const bool is_there = t < count && start + t + 1 < args.ids_length;
        args.tokens[at] = is_there ? args.ids[start + t] : 0;
        args.targets[at] = is_there ? args.ids[start + t + 1] : IGNORED;
    }
    __syncthreads();
    if (args.advances && threadIdx.x == 0) args.schedule[0] = update + 1;
}
