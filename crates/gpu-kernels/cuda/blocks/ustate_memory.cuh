// Where quads of ustate1q lie in memory: codes of any number of bits, means, and moments that are f32.
#pragma once

#include "blocks/seat.cuh"

struct UStateMemory {
    // Codes of second moments of quad j.
    template <class Seat>
    __device__ static u64 v_address(const Seat& seat, u32 j) {
        return seat.chunk.arrays[3] + (u32)seat.at * USTATE_V_BITS / 8 + j * (ROW_ELEMENTS * USTATE_V_BITS / 8);
    }
    // Codes of first moments.
    template <class Seat>
    __device__ static u64 m_address(const Seat& seat, u32 j) {
        return seat.chunk.arrays[0] + (u32)seat.at / 4 + j * (ROW_ELEMENTS / 4);
    }
    // The mean of its block.
    template <class Seat>
    __device__ static u64 mean_address(const Seat& seat, u32 j) {
        return seat.chunk.arrays[1] + (u32)seat.at / USTATE_MEAN_BLOCK * 2 + j * (ROW_ELEMENTS / USTATE_MEAN_BLOCK * 2);
    }

    // The codes of v of four elements, in the low bits of a word. Of three bits, two threads share three
    // bytes, and the address is the byte in which this one's begin.
    __device__ static u32 load_v_codes(u64 address) {
        if constexpr (USTATE_V_BITS == 2) return load_byte(address);
        if constexpr (USTATE_V_BITS == 4) return load_one<2>(address, 0);
        if constexpr (USTATE_V_BITS == 8) return load_one<4>(address, 0);
        if constexpr (USTATE_V_BITS == 6) {
            return load_byte(address) | load_byte(address + 1) << 8 | load_byte(address + 2) << 16;
        }
        return (load_byte(address) | load_byte(address + 1) << 8) >> (threadIdx.x & 1 ? 4 : 0);
    }

    // Overwrites the codes of v of a quad.
    template <class Seat>
    __device__ static void store_v_codes(const Seat& seat, u32 j, u32 word) {
        const u64 address = v_address(seat, j);
        if constexpr (USTATE_V_BITS == 3) {
            word |= __shfl_xor_sync(0xFFFFFFFFu, word, 1) << 12;
            if ((threadIdx.x & 1) != 0) return;
        }
        if (!seat.has(j, 0)) return;
        if constexpr (USTATE_V_BITS == 2) store_byte(address, word);
        if constexpr (USTATE_V_BITS == 4) store_one<2>(address, 0, word);
        if constexpr (USTATE_V_BITS == 8) store_one<4>(address, 0, word);
        if constexpr (USTATE_V_BITS == 6 || USTATE_V_BITS == 3) {
            for (u32 byte = 0; byte < 3; byte++) store_byte(address + byte, word >> (8 * byte) & 0xFF);
        }
    }

    // A moment that is f32.
    template <class Seat>
    __device__ static void load_plain(const Seat& seat, u32 j, u64 array, float* numbers) {
        for (u32 k = 0; k < LANES; k++) {
            numbers[k] = seat.has(j, k) ? as_float(load_one<4>(array, seat.quad(j) + k)) : 0.0f;
        }
    }
    // Overwrites it.
    template <class Seat>
    __device__ static void store_plain(const Seat& seat, u32 j, u64 array, const float* numbers) {
        for (u32 k = 0; k < LANES; k++) {
            if (seat.has(j, k)) store_one<4>(array, seat.quad(j) + k, as_bits(numbers[k]));
        }
    }
};
