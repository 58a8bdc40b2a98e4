// Moves the scales of tensors in ustate1q on, of which others have parts too, once all that their parts found
// is added up. Launched by src/shared.rs.
//
// Grid: a thread for each of these tensors. Overwrites its record, unless the update was dropped.
//
// Defines: THREADS.

#include "blocks/ustate_record.cuh"
#include "prelude.cuh"
#include "table.cuh"

// A tensor whose first moments have a scale.
struct Scaled {
    UStateRecord* record;
    // Elements that count where those without a first moment do too; 0 where only others do.
    u64 whole;
    u32 group;
    u32 padding;
};

struct Scales {
    const Scaled* tensors;
    const double* spreads;
    const Control* control;
    u64 count;
};

extern "C" __global__ void __launch_bounds__(THREADS) advance_scales(const __grid_constant__ Scales scales) {
    const u32 tensor = blockIdx.x * THREADS + threadIdx.x;
    if (tensor >= scales.count || scales.control->is_dropped != 0) return;
    const Scaled own = scales.tensors[tensor];
    const double* const numbers = scales.spreads + tensor * SPREAD_NUMBERS;
    u64 sums[2];
    for (u32 piece = 0; piece < 2; piece++) sums[piece] = (u64)numbers[piece];
    const u64 live = own.whole != 0 ? own.whole : (u64)numbers[2];
    const Group group = group_at(scales.control, own.group);
    *own.record = next_record(own.record->encode_scale, sums, live, group, scales.control->update);
}
