//! Stored moments of the formats that keep elements in blocks: a whole tensor decoded, a whole tensor
//! encoded, one element after the other.
//!
//! What codes mean is said in `formats`; this file says in which order they are read and
//! written. All arithmetic is f32, each operation rounded to nearest.

use formats::counter_hash::uniforms;
use formats::half_floats::{bf16_nearest, bf16_to_f32};
use formats::one_q::{self, Extent, Grid, is_zero};
use formats::published_random::{Place, PublishedStream};
use formats::ustate::{self, CODE_BITS, STEP_FACTOR, SquareSum};
use formats::{Block8, Format, Maps, N4l4, RandomStream, Rules, UState1Q, bit_stream, n4l4};

use crate::adamw::{BlockScalars, Scalars};

/// What decoding and encoding read besides the stored moments.
pub(crate) struct Context<'a> {
    pub(crate) scalars: Scalars,
    pub(crate) block: BlockScalars,
    pub(crate) maps: Option<&'a Maps>,
    pub(crate) random: Random,
}

/// Where random numbers come from.
#[derive(Clone, Copy)]
pub(crate) struct Random {
    pub(crate) seed: u64,
    pub(crate) update: u64,
    /// The position of the tensor among all.
    pub(crate) tensor: u32,
    pub(crate) place: Place,
}

/// The moments m and v of one element.
pub(crate) type Moments = [f32; 2];

/// The moments of every element.
pub(crate) fn decode(
    format: Format,
    arrays: &[Vec<u8>],
    elements: usize,
    context: &Context<'_>,
) -> Vec<Moments> {
    match format {
        Format::Block8(block8) => decode_block8(block8, arrays, elements, context),
        Format::UState1Q(ustate) => decode_ustate1q(ustate, arrays, elements, context),
        Format::N4l4(n4l4) => decode_n4l4(n4l4, arrays, elements),
        _ => unreachable!("elements of {format} stand alone"),
    }
}

/// Overwrites the stored moments of every element.
pub(crate) fn encode(
    format: Format,
    arrays: &mut [Vec<u8>],
    moments: &[Moments],
    context: &Context<'_>,
) {
    match format {
        Format::Block8(block8) => encode_block8(block8, arrays, moments, context),
        Format::UState1Q(ustate) => encode_ustate1q(ustate, arrays, moments, context),
        Format::N4l4(n4l4) => encode_n4l4(n4l4, arrays, moments, context),
        _ => unreachable!("elements of {format} stand alone"),
    }
}

// ---- block8

fn decode_block8(
    Block8 { block, rules, .. }: Block8,
    arrays: &[Vec<u8>],
    elements: usize,
    context: &Context<'_>,
) -> Vec<Moments> {
    let maps = context.maps.expect("a model with block8 tensors has maps");
    let element = |index: usize| {
        let block = index / block as usize;
        let m = maps.first.value_in_block(arrays[0][index], get_f32(&arrays[2], block));
        let v = maps.second.value_in_block(arrays[1][index], get_f32(&arrays[3], block));
        [m, at_least_ratio(m, v, rules, context)]
    };
    (0..elements).map(element).collect()
}

fn encode_block8(
    Block8 { block, .. }: Block8,
    arrays: &mut [Vec<u8>],
    moments: &[Moments],
    context: &Context<'_>,
) {
    let maps = context.maps.expect("a model with block8 tensors has maps");
    for (number, run) in moments.chunks(block as usize).enumerate() {
        let absmax = |which: usize| run.iter().map(|pair| pair[which].abs()).fold(0.0, f32::max);
        let absmaxes = [absmax(0), absmax(1)];
        set_f32(&mut arrays[2], number, absmaxes[0]);
        set_f32(&mut arrays[3], number, absmaxes[1]);
        for (offset, &[m, v]) in run.iter().enumerate() {
            let index = number * block as usize + offset;
            arrays[0][index] = maps.first.code_in_block(m, absmaxes[0]);
            arrays[1][index] = maps.second.code_in_block(v, absmaxes[1]);
        }
    }
}

// ---- ustate1q

fn decode_ustate1q(
    ustate: UState1Q,
    arrays: &[Vec<u8>],
    elements: usize,
    context: &Context<'_>,
) -> Vec<Moments> {
    let rules = ustate.rules;
    let (first, second) = arrays.split_at(if ustate.has_first { 3 } else { 1 });
    let seconds: Vec<Second> = if ustate.has_second {
        decode_grid(second, ustate.v_bits, ustate.block, elements, rules)
    } else {
        (0..elements).map(|index| Second::of(get_f32(&second[0], index))).collect()
    };
    if !ustate.has_first {
        let element = |(index, second): (usize, &Second)| {
            let m = get_f32(&first[0], index);
            [m, at_least_ratio(m, second.v, rules, context)]
        };
        return seconds.iter().enumerate().map(element).collect();
    }
    let (block, scalars) = (context.block, context.scalars);
    // In the mended format the unit of all elements but for the root is taken into scale, mean and bound.
    let common = match rules {
        Rules::Repaired => block.correction_before * block.rms_scale_before,
        Rules::Published => 1.0,
    };
    let scale = common * get_f32(&first[2], 0);
    let bound = common * block.normalised_max_before;
    let mut moments = Vec::new();
    for (number, run) in seconds.chunks(ustate.mean_block as usize).enumerate() {
        let start = number * ustate.mean_block as usize;
        let code = |offset: usize| bit_stream::get(&first[0], start + offset, CODE_BITS);
        let is_live = |offset: &usize| !is_zero(run[*offset].v, rules);
        let live = (0..run.len()).filter(is_live).count();
        let code_sum: u32 = (0..run.len()).filter(is_live).map(code).sum();
        let code_mean = if live == 0 { 0.0 } else { code_sum as f32 / live as f32 };
        let mean = common * bf16_to_f32(get_u16(&first[1], number));
        let lowest = ustate::offset(scale, code_mean, mean);
        for (offset, second) in run.iter().enumerate() {
            let q = (4 + code(offset)) as f32;
            let q = q.mul_add(scale, lowest);
            let m = match rules {
                Rules::Repaired => within(q, bound) * second.r,
                Rules::Published => {
                    let unit = second.r.mul_add(block.rms_scale_before, scalars.eps);
                    q * (block.correction_before * unit)
                }
            };
            moments.push([if is_live(&offset) { m } else { 0.0 }, second.v]);
        }
    }
    moments
}

fn encode_ustate1q(
    ustate: UState1Q,
    arrays: &mut [Vec<u8>],
    moments: &[Moments],
    context: &Context<'_>,
) {
    let rules = ustate.rules;
    let (first, second) = arrays.split_at_mut(if ustate.has_first { 3 } else { 1 });
    let v: Vec<f32> = moments.iter().map(|pair| pair[1]).collect();
    let stored: Vec<Second> = if ustate.has_second {
        encode_grid(second, ustate.v_bits, ustate.block, &v, rules, context);
        decode_grid(second, ustate.v_bits, ustate.block, v.len(), rules)
    } else {
        v.iter().enumerate().for_each(|(index, &v)| set_f32(&mut second[0], index, v));
        v.into_iter().map(Second::of).collect()
    };
    if !ustate.has_first {
        let numbers = moments.iter().enumerate();
        numbers.for_each(|(index, &[m, _])| set_f32(&mut first[0], index, m));
        return;
    }
    let scale = get_f32(&first[2], 1);
    let inverse_scale = ustate::inverse(scale);
    let mut square_sum = SquareSum::default();
    let mut live_count = 0;
    for (number, run) in stored.chunks(ustate.mean_block as usize).enumerate() {
        let start = number * ustate.mean_block as usize;
        let normalised = |(offset, &stored): (usize, &Second)| {
            let [m, _] = moments[start + offset];
            (!is_zero(stored.v, rules)).then(|| normalised(m, stored.r, rules, context))
        };
        let q: Vec<Option<f32>> = run.iter().enumerate().map(normalised).collect();
        let live = q.iter().flatten().count();
        live_count += live as u64;
        let sum = tree_sum(ustate.mean_block, q.iter().map(|q| q.unwrap_or(0.0)));
        let mean = if live == 0 { 0 } else { bf16_nearest(sum / live as f32) };
        set_u16(&mut first[1], number, mean);
        let mean = bf16_to_f32(mean);
        for four in q.chunks(4) {
            let distance =
                |index: usize| four.get(index).copied().flatten().map_or(0.0, |q| q - mean);
            let [a, b, c, d] = [0, 1, 2, 3].map(distance);
            square_sum = square_sum.with(d.mul_add(d, c.mul_add(c, b.mul_add(b, a * a))));
        }
        for (offset, q) in q.iter().enumerate() {
            let index = start + offset;
            let dither = context.random.dither(rules, index);
            let code = q.map_or(0, |q| ustate::code(q - mean, inverse_scale, dither));
            bit_stream::set(&mut first[0], index, CODE_BITS, code);
        }
    }
    let count = match rules {
        Rules::Repaired => live_count,
        Rules::Published => moments.len() as u64,
    };
    let next = (STEP_FACTOR * square_sum.mean(count).sqrt()) as f32;
    set_f32(&mut first[2], 0, scale);
    set_f32(&mut first[2], 1, if count == 0 { scale } else { next });
}

/// The normalised update of an element that is not kept as zero, given the root of what is stored of its
/// second moment.
fn normalised(m: f32, stored_r: f32, rules: Rules, context: &Context<'_>) -> f32 {
    let (block, scalars) = (context.block, context.scalars);
    match rules {
        Rules::Repaired => {
            let unit = (1.0 / stored_r) * (block.inverse_correction / scalars.rms_scale);
            within(m * unit, block.normalised_max)
        }
        Rules::Published => {
            m * (block.inverse_correction / stored_r.mul_add(scalars.rms_scale, scalars.eps))
        }
    }
}

/// The sum of a block of `elements` numbers, of which absent ones are zero: four neighbours first, then
/// by halves.
fn tree_sum(elements: u32, numbers: impl Iterator<Item = f32>) -> f32 {
    let mut numbers: Vec<f32> = numbers.collect();
    numbers.resize(elements as usize, 0.0);
    let mut sums: Vec<f32> =
        numbers.chunks(4).map(|four| (four[0] + four[1]) + (four[2] + four[3])).collect();
    while sums.len() > 1 {
        let half = sums.len() / 2;
        sums = (0..half).map(|index| sums[index] + sums[index + half]).collect();
    }
    sums[0]
}

// ---- n4l4

fn decode_n4l4(options: N4l4, arrays: &[Vec<u8>], elements: usize) -> Vec<Moments> {
    let element = |index: usize| {
        let code = u32::from(arrays[0][index]);
        let r = root_grid(&arrays[2], index / options.v_block as usize).root(code >> 4);
        let unit = bf16_to_f32(get_u16(&arrays[1], index / options.m_block as usize));
        [(n4l4::multiple(code) * unit) * r, r * r]
    };
    (0..elements).map(element).collect()
}

fn encode_n4l4(options: N4l4, arrays: &mut [Vec<u8>], moments: &[Moments], context: &Context<'_>) {
    let roots: Vec<f32> = moments.iter().map(|pair| pair[1].sqrt()).collect();
    let v_block = options.v_block as usize;
    for (number, run) in roots.chunks(v_block).enumerate() {
        let extent = run.iter().fold(n4l4::Extent::NONE, |extent, &root| extent.with(root));
        let has_zero = run.iter().any(|&root| root <= n4l4::ROOT_ZERO_MAX);
        let endpoints = extent.endpoints(has_zero);
        set_u16(&mut arrays[2], 2 * number, endpoints[0]);
        set_u16(&mut arrays[2], 2 * number + 1, endpoints[1]);
    }
    let stored = |(index, &root): (usize, &f32)| {
        let uniform = context.random.uniform(Rules::Repaired, index);
        root_grid(&arrays[2], index / v_block).code(root, uniform)
    };
    let stored: Vec<(u32, f32)> = roots.iter().enumerate().map(stored).collect();
    let quotient = |(&[m, _], &(_, root)): (&Moments, &(u32, f32))| {
        if root == 0.0 { 0.0 } else { m * (1.0 / root) }
    };
    let q: Vec<f32> = moments.iter().zip(&stored).map(quotient).collect();
    for (number, run) in q.chunks(options.m_block as usize).enumerate() {
        let absmax = run.iter().map(|q| q.abs()).fold(0.0, f32::max);
        let unit = n4l4::stored_unit(absmax, context.block.ratio_max);
        set_u16(&mut arrays[1], number, unit);
        let inverse_unit = n4l4::inverse_unit(unit);
        for (offset, &q) in run.iter().enumerate() {
            let index = number * options.m_block as usize + offset;
            let dither = context.random.dither(Rules::Repaired, index);
            let dither = if options.is_nearest { 0.5 } else { dither };
            let m_code = n4l4::code(q, inverse_unit, dither);
            arrays[0][index] = (m_code | stored[index].0 << 4) as u8;
        }
    }
}

fn root_grid(endpoints: &[u8], block: usize) -> n4l4::Grid {
    n4l4::Grid::new([get_u16(endpoints, 2 * block), get_u16(endpoints, 2 * block + 1)])
}

// ---- What both share: grids of second moments, bounds, random numbers, bytes.

fn grid(endpoints: &[u8], block: usize, bits: u32) -> Grid {
    Grid::new([get_u16(endpoints, 2 * block), get_u16(endpoints, 2 * block + 1)], bits)
}

/// The second moments that codes and endpoints stand for.
fn decode_grid(
    arrays: &[Vec<u8>],
    bits: u32,
    block: u32,
    elements: usize,
    rules: Rules,
) -> Vec<Second> {
    let value = |index: usize| {
        let grid = grid(&arrays[1], index / block as usize, bits);
        let r = grid.root(bit_stream::get(&arrays[0], index, bits), rules);
        Second { v: r * r, r }
    };
    (0..elements).map(value).collect()
}

/// A stored second moment, and its root.
#[derive(Clone, Copy)]
struct Second {
    v: f32,
    r: f32,
}

impl Second {
    fn of(v: f32) -> Second {
        Second { v, r: v.sqrt() }
    }
}

/// Codes and endpoints of second moments. Codes beyond the last element stay zero.
fn encode_grid(
    arrays: &mut [Vec<u8>],
    bits: u32,
    block: u32,
    v: &[f32],
    rules: Rules,
    context: &Context<'_>,
) {
    for (number, run) in v.chunks(block as usize).enumerate() {
        let extent = run.iter().fold(Extent::NONE, |extent, &v| extent.with(v, rules));
        let endpoints = extent.endpoints(rules);
        set_u16(&mut arrays[1], 2 * number, endpoints[0]);
        set_u16(&mut arrays[1], 2 * number + 1, endpoints[1]);
        let grid = Grid::new(endpoints, bits);
        let levels: Vec<f32> = (0..1 << bits).map(|code| grid.value(code, rules)).collect();
        for (offset, &v) in run.iter().enumerate() {
            let index = number * block as usize + offset;
            let uniform = context.random.uniform(rules, index);
            let code = one_q::code(&levels, grid.has_zero, v, uniform, rules);
            bit_stream::set(&mut arrays[0], index, bits, code);
        }
    }
}

/// A decoded v, raised to where exact moments could have m beside it.
fn at_least_ratio(m: f32, v: f32, rules: Rules, context: &Context<'_>) -> f32 {
    let root = m * context.block.inverse_ratio_max_before;
    match rules {
        Rules::Repaired if root * root > v => root * root,
        _ => v,
    }
}

fn within(x: f32, bound: f32) -> f32 {
    let x = if x < bound { x } else { bound };
    if x > -bound { x } else { -bound }
}

impl Random {
    /// The random number of an element's second moment.
    fn uniform(self, rules: Rules, index: usize) -> f32 {
        match rules {
            Rules::Repaired => self.of_four(index)[index % 4],
            Rules::Published => self.published()[1].uniform(index as u32),
        }
    }

    /// What its first moment is dithered by.
    fn dither(self, rules: Rules, index: usize) -> f32 {
        match rules {
            Rules::Repaired => self.of_four(index)[(index % 4) ^ 1],
            Rules::Published => self.published()[0].dither(index as u32),
        }
    }

    fn of_four(self, index: usize) -> [f32; 4] {
        let index_high = (index as u64 >> 32) as u32;
        let stream = RandomStream::new(self.seed, self.update, self.tensor, index_high);
        uniforms(stream.words_of_four(index as u32 / 4))
    }

    fn published(self) -> [PublishedStream; 2] {
        PublishedStream::both(self.seed as u32, self.update, self.place)
    }
}

fn get_u16(bytes: &[u8], index: usize) -> u16 {
    u16::from_le_bytes(bytes.as_chunks::<2>().0[index])
}

fn set_u16(bytes: &mut [u8], index: usize, value: u16) {
    bytes.as_chunks_mut::<2>().0[index] = value.to_le_bytes();
}

fn get_f32(bytes: &[u8], index: usize) -> f32 {
    f32::from_le_bytes(bytes.as_chunks::<4>().0[index])
}

fn set_f32(bytes: &mut [u8], index: usize, value: f32) {
    bytes.as_chunks_mut::<4>().0[index] = value.to_le_bytes();
}
