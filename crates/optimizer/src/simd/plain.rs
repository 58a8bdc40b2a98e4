//! Sixteen lanes as arrays, in loops: what every machine has.

use formats::half_floats::{binary16_above, binary16_below, binary16_to_f32};

use super::{Plain, Table, Vectors};

#[inline]
fn each<T: Copy, R: Copy + Default>(x: [T; 16], of: impl Fn(T) -> R) -> [R; 16] {
    let mut results = [R::default(); 16];
    for (result, x) in results.iter_mut().zip(x) {
        *result = of(x);
    }
    results
}

#[inline]
fn both<T: Copy, S: Copy, R: Copy + Default>(
    x: [T; 16],
    y: [S; 16],
    of: impl Fn(T, S) -> R,
) -> [R; 16] {
    let mut results = [R::default(); 16];
    for (result, (x, y)) in results.iter_mut().zip(x.into_iter().zip(y)) {
        *result = of(x, y);
    }
    results
}

impl Vectors for Plain {
    const FUSES: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));
    type Floats = [f32; 16];
    type Words = [u32; 16];
    type Flags = [bool; 16];

    #[inline]
    fn load(from: &[f32; 16]) -> [f32; 16] {
        *from
    }
    #[inline]
    fn store(x: [f32; 16], to: &mut [f32; 16]) {
        *to = x;
    }
    #[inline]
    fn load_words(from: &[u32; 16]) -> [u32; 16] {
        *from
    }
    #[inline]
    fn pairs(from: &[[u16; 2]; 16]) -> [u32; 16] {
        each(*from, |[first, second]| u32::from(first) | u32::from(second) << 16)
    }
    #[inline]
    fn splat(x: f32) -> [f32; 16] {
        [x; 16]
    }
    #[inline]
    fn words(x: u32) -> [u32; 16] {
        [x; 16]
    }
    #[inline]
    fn bytes(from: &[u8; 16]) -> [u32; 16] {
        each(*from, u32::from)
    }

    #[inline]
    fn add(x: [f32; 16], y: [f32; 16]) -> [f32; 16] {
        both(x, y, |x, y| x + y)
    }
    #[inline]
    fn sub(x: [f32; 16], y: [f32; 16]) -> [f32; 16] {
        both(x, y, |x, y| x - y)
    }
    #[inline]
    fn mul(x: [f32; 16], y: [f32; 16]) -> [f32; 16] {
        both(x, y, |x, y| x * y)
    }
    #[inline]
    fn div(x: [f32; 16], y: [f32; 16]) -> [f32; 16] {
        both(x, y, |x, y| x / y)
    }
    #[inline]
    fn sqrt(x: [f32; 16]) -> [f32; 16] {
        each(x, f32::sqrt)
    }
    #[inline]
    fn fused(x: [f32; 16], y: [f32; 16], z: [f32; 16]) -> [f32; 16] {
        let mut results = z;
        for (result, (x, y)) in results.iter_mut().zip(x.into_iter().zip(y)) {
            *result = x.mul_add(y, *result);
        }
        results
    }
    #[inline]
    fn min(x: [f32; 16], y: [f32; 16]) -> [f32; 16] {
        both(x, y, |x, y| if x < y { x } else { y })
    }
    #[inline]
    fn max(x: [f32; 16], y: [f32; 16]) -> [f32; 16] {
        both(x, y, |x, y| if x > y { x } else { y })
    }
    #[inline]
    fn reaches(x: [f32; 16], y: [f32; 16]) -> [bool; 16] {
        both(x, y, |x, y| x >= y)
    }
    #[inline]
    fn exceeds(x: [f32; 16], y: [f32; 16]) -> [bool; 16] {
        both(x, y, |x, y| x > y)
    }
    #[inline]
    fn choose(which: [bool; 16], x: [f32; 16], y: [f32; 16]) -> [f32; 16] {
        let mut results = y;
        for (result, (which, x)) in results.iter_mut().zip(which.into_iter().zip(x)) {
            *result = if which { x } else { *result };
        }
        results
    }

    #[inline]
    fn bits(x: [f32; 16]) -> [u32; 16] {
        each(x, f32::to_bits)
    }
    #[inline]
    fn float(x: [u32; 16]) -> [f32; 16] {
        each(x, f32::from_bits)
    }
    #[inline]
    fn counted(x: [u32; 16]) -> [f32; 16] {
        each(x, |x| x as i32 as f32)
    }
    #[inline]
    fn exponents(x: [f32; 16]) -> [f32; 16] {
        each(x, |x| (x.to_bits() >> 23) as f32 - 127.0)
    }
    #[inline]
    fn mantissas(x: [f32; 16]) -> [f32; 16] {
        each(x, |x| f32::from_bits(x.to_bits() & 0x007F_FFFF | 1f32.to_bits()))
    }
    #[inline]
    fn whole(x: [f32; 16]) -> [u32; 16] {
        each(x, |x| x as u32)
    }
    #[inline]
    fn plus(x: [u32; 16], y: [u32; 16]) -> [u32; 16] {
        both(x, y, u32::wrapping_add)
    }
    #[inline]
    fn minus(x: [u32; 16], y: [u32; 16]) -> [u32; 16] {
        both(x, y, u32::wrapping_sub)
    }
    #[inline]
    fn and(x: [u32; 16], y: [u32; 16]) -> [u32; 16] {
        both(x, y, |x, y| x & y)
    }
    #[inline]
    fn or(x: [u32; 16], y: [u32; 16]) -> [u32; 16] {
        both(x, y, |x, y| x | y)
    }
    #[inline]
    fn xor(x: [u32; 16], y: [u32; 16]) -> [u32; 16] {
        both(x, y, |x, y| x ^ y)
    }
    #[inline]
    fn shl<const N: u32>(x: [u32; 16]) -> [u32; 16] {
        each(x, |x| x << N)
    }
    #[inline]
    fn shr<const N: u32>(x: [u32; 16]) -> [u32; 16] {
        each(x, |x| x >> N)
    }
    #[inline]
    fn sar<const N: u32>(x: [u32; 16]) -> [u32; 16] {
        each(x, |x| (x as i32 >> N) as u32)
    }
    #[inline]
    fn halves_below(x: [f32; 16]) -> [u32; 16] {
        each(x, |x| u32::from(binary16_below(x)))
    }
    #[inline]
    fn halves_above(x: [f32; 16]) -> [u32; 16] {
        each(x, |x| u32::from(binary16_above(x)))
    }
    #[inline]
    fn from_halves(x: [u32; 16]) -> [f32; 16] {
        each(x, |x| binary16_to_f32(x as u16))
    }
    #[inline]
    fn turned(x: [u32; 16]) -> [u32; 16] {
        each(x, |x| x.rotate_left(16))
    }
    #[inline]
    fn smaller(x: [u32; 16], y: [u32; 16]) -> [u32; 16] {
        both(x, y, u32::min)
    }
    #[inline]
    fn larger(x: [u32; 16], y: [u32; 16]) -> [u32; 16] {
        both(x, y, u32::max)
    }
    #[inline]
    fn times(x: [u32; 16], y: [u32; 16]) -> [u32; 16] {
        both(x, y, u32::wrapping_mul)
    }
    #[inline]
    fn folded(x: [u32; 16], y: [u32; 16]) -> [u32; 16] {
        both(x, y, |x, y| {
            let product = u64::from(x) * u64::from(y);
            product as u32 ^ (product >> 32) as u32
        })
    }
    #[inline]
    fn is_below(x: [u32; 16], y: [u32; 16]) -> [bool; 16] {
        both(x, y, |x, y| x < y)
    }
    #[inline]
    fn choose_words(which: [bool; 16], x: [u32; 16], y: [u32; 16]) -> [u32; 16] {
        let mut results = y;
        for (result, (which, x)) in results.iter_mut().zip(which.into_iter().zip(x)) {
            *result = if which { x } else { *result };
        }
        results
    }
    #[inline]
    fn look_up(table: [f32; 16], places: [u32; 16]) -> [f32; 16] {
        each(places, |place| table[place as usize % 16])
    }

    #[inline]
    fn add_squares(of: &[f32; 16], to: &mut [f64; 16]) {
        for (sum, x) in to.iter_mut().zip(of.map(f64::from)) {
            *sum += x * x;
        }
    }

    #[inline]
    fn count(which: [bool; 16]) -> u32 {
        which.into_iter().map(u32::from).sum()
    }
    #[inline]
    fn total(x: [u32; 16]) -> u32 {
        x.into_iter().fold(0, u32::wrapping_add)
    }
    #[inline]
    fn smallest(x: [u32; 16]) -> u32 {
        x.into_iter().fold(u32::MAX, u32::min)
    }
    #[inline]
    fn largest(x: [u32; 16]) -> u32 {
        x.into_iter().fold(0, u32::max)
    }

    #[inline]
    fn extents(of: &[[[f32; 16]; 2]; 16]) -> [[u32; 16]; 2] {
        let (mut least, mut most) = ([0; 16], [0; 16]);
        for ((least, most), own) in least.iter_mut().zip(&mut most).zip(of) {
            let [first, second] = own.map(Plain::bits);
            (*least, *most) = (Plain::smallest(first), Plain::largest(second));
        }
        [least, most]
    }

    #[inline]
    fn four_numbers() -> [u32; 16] {
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    }
    #[inline]
    fn fours(from: &[f32; 64]) -> [[f32; 16]; 4] {
        let mut fours = [[0.0; 16]; 4];
        for (j, four) in from.as_chunks::<4>().0.iter().enumerate() {
            for (k, &x) in four.iter().enumerate() {
                fours[k][j] = x;
            }
        }
        fours
    }
    #[inline]
    fn store_fours(fours: [[f32; 16]; 4], to: &mut [f32; 64]) {
        for (j, four) in to.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            for (k, x) in four.iter_mut().enumerate() {
                *x = fours[k][j];
            }
        }
    }
    #[inline]
    fn four_words(from: &[u8; 64]) -> [u32; 16] {
        let mut words = [0; 16];
        for (word, bytes) in words.iter_mut().zip(from.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        words
    }
    #[inline]
    fn four_bytes(from: &[u8; 16]) -> [u32; 16] {
        each(*from, u32::from)
    }
    #[inline]
    fn four_halves(from: &[u16; 16]) -> [u32; 16] {
        each(*from, u32::from)
    }
    #[inline]
    fn to_four_bytes(x: [u32; 16]) -> [u8; 16] {
        each(x, |x| x as u8)
    }
    #[inline]
    fn to_four_halves(x: [u32; 16]) -> [u16; 16] {
        each(x, |x| x as u16)
    }
    #[inline]
    fn to_four_words(x: [u32; 16]) -> [u32; 16] {
        x
    }
    #[inline]
    fn tree_sum(x: [f32; 16]) -> f32 {
        let mut sums = x;
        for half in [8, 4, 2, 1] {
            for low in 0..half {
                sums[low] += sums[low + half];
            }
        }
        sums[0]
    }

    #[inline]
    fn tree_sums(of: &[[f32; 16]; 16]) -> [f32; 16] {
        each(*of, Plain::tree_sum)
    }

    #[inline]
    fn look_up_256(table: &Table, codes: &[u8; 64]) -> [[f32; 16]; 4] {
        let mut found = [[0.0; 16]; 4];
        for (found, codes) in found.iter_mut().zip(codes.as_chunks::<16>().0) {
            *found = each(*codes, |code| table.entries[code as usize]);
        }
        found
    }
    #[inline]
    fn settle(
        table: &Table,
        guesses: [[u32; 16]; 4],
        x: [[f32; 16]; 4],
        turn: bool,
        to: &mut [u8; 64],
    ) {
        for ((codes, guesses), x) in to.as_chunks_mut::<16>().0.iter_mut().zip(guesses).zip(x) {
            *codes = both(guesses, x, |guess, x| {
                let turned = turn && x.is_sign_negative();
                let code = if turned { 253u8.saturating_sub(guess as u8) } else { guess as u8 };
                code.wrapping_add(u8::from(x > table.entries[code as usize]))
            });
        }
    }
}
