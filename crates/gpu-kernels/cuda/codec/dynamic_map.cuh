// Codes of 8-bit maps; twin of formats/src/dynamic_map.rs. src/maps.rs lays out the tables.
//
// A number gets the code that is the number of thresholds below it. Numbers from 2^-11 on lie in cells
// of 2^-6 or 2^-7 of a binade, smaller ones in cells of an eighth, so that a cell has one threshold at most. The
// word of a cell has the code of its lower end in its upper 8 bits; in the others, how far below a
// carry the threshold lies. So the sum of that word and the number's own lower 24 bits has
// the code in its upper 8. Those of negative numbers are turned over, for them to ascend as well.
//
// Defines: MAP_FIRST_SHIFT, MAP_SECOND_SHIFT, MAP_COARSE_SHIFT, MAP_BORDER_BITS, MAP_FIRST_CELLS,
// MAP_SECOND_CELLS, MAP_TABLE_WORDS.
#pragma once

#include "prelude.cuh"

struct Tables {
    // Entries of both maps; cells of the first map's positive and negative numbers, and of the second's
    // positive ones.
    u32* shared;
    // The same in device memory, and after it the thresholds of both maps.
    const u32* memory;

    // Copies the tables. All threads of a block take part, and meet afterwards.
    __device__ void fill() const {
        static_assert(MAP_TABLE_WORDS % 4 == 0, "copied 16 bytes at a time");
#pragma unroll
        for (u32 round = 0; round < (MAP_TABLE_WORDS + THREADS * 4 - 1) / (THREADS * 4); round++) {
            const u32 word = threadIdx.x * 4 + round * THREADS * 4;
            if (word >= MAP_TABLE_WORDS) continue;
            *reinterpret_cast<uint4*>(shared + word) = *reinterpret_cast<const uint4*>(memory + word);
        }
    }

    __device__ float first(u32 code) const { return as_float(shared[code]); }
    __device__ float second(u32 code) const { return as_float(shared[256 + code]); }

    // A word with the code of x in its upper 8 bits: of the first map, or for a positive x of the
    // second.
    template <bool FIRST>
    __device__ u32 looked_up(float x) const {
        const u32 bits = as_bits(x);
        if constexpr (FIRST) {
            const u32 sign = (u32)((i32)bits >> 31);
            const u32 cell = cell_of<MAP_FIRST_SHIFT>(bits & MAGNITUDE) - sign * MAP_FIRST_CELLS;
            return shared[512 + cell] + ((bits ^ sign) & 0xFFFFFFu);
        } else {
            const u32 cell = cell_of<MAP_SECOND_SHIFT>(bits);
            return shared[512 + 2 * MAP_FIRST_CELLS + cell] + (bits & 0xFFFFFFu);
        }
    }

    // The code of any number.
    template <bool FIRST>
    __device__ u32 bisected(float x) const {
        const u32* const thresholds = memory + MAP_TABLE_WORDS + (FIRST ? 0 : 256);
        u32 code = 0;
#pragma unroll
        for (u32 step = 128; step > 0; step /= 2) {
            if (x > as_float(thresholds[code + step - 1])) code += step;
        }
        return code;
    }

  private:
    template <u32 SHIFT>
    __device__ static u32 cell_of(u32 magnitude) {
        constexpr i32 OFFSET = (MAP_BORDER_BITS >> SHIFT) - (MAP_BORDER_BITS >> MAP_COARSE_SHIFT);
        return (u32)max((i32)(magnitude >> SHIFT) - OFFSET, (i32)(magnitude >> MAP_COARSE_SHIFT));
    }
};
