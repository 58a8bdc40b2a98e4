// Codes of 8-bit maps; twin of formats/src/dynamic_map.rs. src/maps.rs lays out the tables.
//
// A number gets the code that is the number of thresholds below it. Where numbers with the same upper
// 16 bits have two codes at most, a table has the lower one; else the code is bisected. A number over
// its block's absmax is at most 1, and what is below 2^-24 has an entry in common, so the table
// needs 25 binades only.
#pragma once

#include "prelude.cuh"

// Words of a map's tables: entries, thresholds, and first codes of positive and negative numbers.
static constexpr u32 MAP_KEYS = 24 * 128 + 4;
static constexpr u32 MAP_WORDS = 2 * 256 + 2 * MAP_KEYS / 4;
static_assert(MAP_WORDS == MAP_TABLE_WORDS, "src/maps.rs lays out the same tables");

struct MapTables {
    const u32* words;
    bool is_fine;

    __device__ float entry(u32 code) const { return as_float(words[code]); }
    __device__ float threshold(u32 code) const { return as_float(words[256 + code]); }

    // The code of a number from -1 to 1.
    __device__ u32 code(float x) const { return is_fine ? by_table(x) : bisected(x); }

    __device__ u32 by_table(float x) const {
        const u32 bits = as_bits(x);
        const u32 magnitude = bits >> 16 & 0x7FFFu;
        const u32 least = (127 - 24) * 128 - 1;
        const u32 key = (magnitude > least ? magnitude - least : 0) + (bits >> 31) * MAP_KEYS;
        const u32 first = reinterpret_cast<const u8*>(words + 512)[key];
        return first + (x > threshold(first) ? 1u : 0u);
    }

    __device__ u32 bisected(float x) const {
        u32 code = 0;
#pragma unroll
        for (u32 step = 128; step > 0; step /= 2) {
            if (x > threshold(code + step - 1)) code += step;
        }
        return code;
    }
};
