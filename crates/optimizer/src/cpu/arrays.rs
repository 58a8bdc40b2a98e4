//! The stored moments of one tensor in this machine's memory: arrays, views of a
//! run of elements, bytes.
//!
//! What a format's arrays are called and how many elements they have comes from
//! `formats`.

use std::borrow::Cow;

use formats::ustate::CODE_BITS;
use formats::{Block8, ElementType, Format, N4l4, Section, UState1Q};

/// The arrays of one tensor, in the order of [`Format::arrays`].
#[derive(Clone, Debug)]
pub(crate) struct Arrays {
    format: Format,
    arrays: Vec<Array>,
}

/// One array, by the size of its elements.
#[derive(Clone, Debug)]
enum Array {
    Bytes(Vec<u8>),
    Halves(Vec<u16>),
    Words(Vec<u32>),
    Floats(Vec<f32>),
}

/// The arrays of a run of elements, for writing.
pub(crate) enum ArraysMut<'a> {
    /// `m` and `v` as they are.
    Moments {
        m: &'a mut [f32],
        v: &'a mut [f32],
    },
    /// One state word per element.
    Words(&'a mut [u32]),
    Block8(Block8Mut<'a>),
    UState1Q {
        options: UState1Q,
        first: FirstMut<'a>,
        second: SecondMut<'a>,
    },
    N4l4(N4l4Mut<'a>),
}

/// Of `block8`.
pub(crate) struct Block8Mut<'a> {
    pub(crate) options: Block8,
    pub(crate) m_codes: &'a mut [u8],
    pub(crate) v_codes: &'a mut [u8],
    pub(crate) m_absmax: &'a mut [f32],
    pub(crate) v_absmax: &'a mut [f32],
}

/// The first moments of `ustate1q`.
pub(crate) enum FirstMut<'a> {
    Plain(&'a mut [f32]),
    /// The scales are those of the whole tensor.
    Codes {
        codes: &'a mut [u8],
        means: &'a mut [u16],
        scales: [f32; 2],
    },
}

/// The second moments of `ustate1q`.
pub(crate) enum SecondMut<'a> {
    Plain(&'a mut [f32]),
    Codes { codes: &'a mut [u8], endpoints: &'a mut [u16] },
}

/// Of `n4l4`.
pub(crate) struct N4l4Mut<'a> {
    pub(crate) options: N4l4,
    pub(crate) codes: &'a mut [u8],
    pub(crate) m_units: &'a mut [u16],
    pub(crate) r_endpoints: &'a mut [u16],
}

impl Arrays {
    /// The fresh state of `elements` elements of a tensor in `format`.
    pub(crate) fn fresh(format: Format, elements: usize) -> Arrays {
        let arrays = format.arrays(elements as u64).map(Array::fresh).collect();
        Arrays { format, arrays }
    }

    /// All elements, for writing.
    pub(crate) fn view_mut(&mut self) -> ArraysMut<'_> {
        let mut arrays = self.arrays.iter_mut();
        let mut next = || arrays.next().expect("a format has all of its arrays");
        match self.format {
            Format::Fp32 => ArraysMut::Moments { m: next().floats(), v: next().floats() },
            Format::Fp16 | Format::E4 | Format::E4s => ArraysMut::Words(next().words()),
            Format::Block8(options) => ArraysMut::Block8(Block8Mut {
                options,
                m_codes: next().bytes_mut(),
                v_codes: next().bytes_mut(),
                m_absmax: next().floats(),
                v_absmax: next().floats(),
            }),
            Format::UState1Q(options) => {
                let first = if options.has_first {
                    let (codes, means, scales) = (next(), next(), next().floats());
                    FirstMut::Codes {
                        codes: codes.bytes_mut(),
                        means: means.halves(),
                        scales: [scales[0], scales[1]],
                    }
                } else {
                    FirstMut::Plain(next().floats())
                };
                let second = if options.has_second {
                    SecondMut::Codes { codes: next().bytes_mut(), endpoints: next().halves() }
                } else {
                    SecondMut::Plain(next().floats())
                };
                ArraysMut::UState1Q { options, first, second }
            }
            Format::N4l4(options) => ArraysMut::N4l4(N4l4Mut {
                options,
                codes: next().bytes_mut(),
                m_units: next().halves(),
                r_endpoints: next().halves(),
            }),
        }
    }

    /// Moves the scales of `ustate1q` on: what was encoded with is decoded with, and `next` is
    /// encoded with.
    pub(crate) fn advance_scales(&mut self, next: impl FnOnce(f32) -> f32) {
        if let Format::UState1Q(UState1Q { has_first: true, .. }) = self.format {
            let scales = self.arrays[2].floats();
            scales[0] = scales[1];
            scales[1] = next(scales[0]);
        }
    }

    /// The bytes of the elements.
    pub(crate) fn bytes(&self) -> u64 {
        self.arrays.iter().map(|array| array.little_endian().len() as u64).sum()
    }

    /// The little-endian bytes of every section, in the order of
    /// [`Format::sections`].
    pub(crate) fn sections(&self) -> Vec<Cow<'_, [u8]>> {
        self.arrays.iter().map(Array::little_endian).collect()
    }

    /// Overwrites section `section` from little-endian bytes.
    ///
    /// # Panics
    ///
    /// If there is no such section, or it has another length.
    pub(crate) fn overwrite(&mut self, section: usize, bytes: &[u8]) {
        self.arrays[section].overwrite(bytes);
    }
}

impl Array {
    fn fresh(section: Section) -> Array {
        let count = section.count as usize;
        let mut array = match section.element {
            ElementType::U8 => Array::Bytes(vec![0; count]),
            ElementType::F16 | ElementType::Bf16 => Array::Halves(vec![0; count]),
            ElementType::U32 => Array::Words(vec![0; count]),
            ElementType::F32 => Array::Floats(vec![0.0; count]),
        };
        if section.fresh.iter().any(|&byte| byte != 0) {
            let bytes = section.fresh.iter().copied().cycle().take(section.bytes() as usize);
            array.overwrite(&bytes.collect::<Vec<u8>>());
        }
        array
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if let Array::Bytes(bytes) = self { bytes } else { wrong_elements() }
    }

    fn halves(&mut self) -> &mut [u16] {
        if let Array::Halves(halves) = self { halves } else { wrong_elements() }
    }

    fn words(&mut self) -> &mut [u32] {
        if let Array::Words(words) = self { words } else { wrong_elements() }
    }

    fn floats(&mut self) -> &mut [f32] {
        if let Array::Floats(floats) = self { floats } else { wrong_elements() }
    }

    /// The elements as little-endian bytes: a view where the machine stores them so, a copy
    /// elsewhere.
    fn little_endian(&self) -> Cow<'_, [u8]> {
        if cfg!(target_endian = "little") {
            return Cow::Borrowed(match self {
                Array::Bytes(bytes) => bytes,
                Array::Halves(halves) => bytemuck::cast_slice(halves),
                Array::Words(words) => bytemuck::cast_slice(words),
                Array::Floats(floats) => bytemuck::cast_slice(floats),
            });
        }
        Cow::Owned(match self {
            Array::Bytes(bytes) => bytes.clone(),
            Array::Halves(halves) => halves.iter().flat_map(|half| half.to_le_bytes()).collect(),
            Array::Words(words) => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            Array::Floats(floats) => floats.iter().flat_map(|x| x.to_le_bytes()).collect(),
        })
    }

    fn overwrite(&mut self, bytes: &[u8]) {
        match self {
            Array::Bytes(own) => own.copy_from_slice(bytes),
            Array::Halves(halves) => from_little_endian(halves, bytes, u16::from_le_bytes),
            Array::Words(words) => from_little_endian(words, bytes, u32::from_le_bytes),
            Array::Floats(floats) => from_little_endian(floats, bytes, f32::from_le_bytes),
        }
    }
}

fn wrong_elements() -> ! {
    unreachable!("the arrays of a tensor are made for its format")
}

fn from_little_endian<T, const BYTES: usize>(
    elements: &mut [T],
    bytes: &[u8],
    read: fn([u8; BYTES]) -> T,
) {
    let (words, _) = bytes.as_chunks::<BYTES>();
    assert_eq!(elements.len(), words.len(), "a section is overwritten whole");
    for (element, word) in elements.iter_mut().zip(words) {
        *element = read(*word);
    }
}

impl<'a> ArraysMut<'a> {
    /// The same arrays, for a shorter time.
    pub(crate) fn reborrow(&mut self) -> ArraysMut<'_> {
        match self {
            ArraysMut::Moments { m, v } => ArraysMut::Moments { m, v },
            ArraysMut::Words(words) => ArraysMut::Words(words),
            ArraysMut::Block8(arrays) => ArraysMut::Block8(Block8Mut {
                options: arrays.options,
                m_codes: arrays.m_codes,
                v_codes: arrays.v_codes,
                m_absmax: arrays.m_absmax,
                v_absmax: arrays.v_absmax,
            }),
            ArraysMut::UState1Q { options, first, second } => {
                let first = match first {
                    FirstMut::Plain(m) => FirstMut::Plain(m),
                    FirstMut::Codes { codes, means, scales } => {
                        FirstMut::Codes { codes, means, scales: *scales }
                    }
                };
                let second = match second {
                    SecondMut::Plain(v) => SecondMut::Plain(v),
                    SecondMut::Codes { codes, endpoints } => SecondMut::Codes { codes, endpoints },
                };
                ArraysMut::UState1Q { options: *options, first, second }
            }
            ArraysMut::N4l4(arrays) => ArraysMut::N4l4(N4l4Mut {
                options: arrays.options,
                codes: arrays.codes,
                m_units: arrays.m_units,
                r_endpoints: arrays.r_endpoints,
            }),
        }
    }

    /// Cuts after `elements` elements, which are whole blocks.
    pub(crate) fn split_at(self, elements: usize) -> (ArraysMut<'a>, ArraysMut<'a>) {
        match self {
            ArraysMut::Moments { m, v } => {
                let (m, m_rest) = m.split_at_mut(elements);
                let (v, v_rest) = v.split_at_mut(elements);
                (ArraysMut::Moments { m, v }, ArraysMut::Moments { m: m_rest, v: v_rest })
            }
            ArraysMut::Words(words) => {
                let (words, rest) = words.split_at_mut(elements);
                (ArraysMut::Words(words), ArraysMut::Words(rest))
            }
            ArraysMut::Block8(arrays) => {
                let (arrays, rest) = arrays.split_at(elements);
                (ArraysMut::Block8(arrays), ArraysMut::Block8(rest))
            }
            ArraysMut::UState1Q { options, first, second } => {
                let (first, first_rest) = first.split_at(elements, options);
                let (second, second_rest) = second.split_at(elements, options);
                (
                    ArraysMut::UState1Q { options, first, second },
                    ArraysMut::UState1Q { options, first: first_rest, second: second_rest },
                )
            }
            ArraysMut::N4l4(arrays) => {
                let (arrays, rest) = arrays.split_at(elements);
                (ArraysMut::N4l4(arrays), ArraysMut::N4l4(rest))
            }
        }
    }
}

impl Block8Mut<'_> {
    fn split_at(self, elements: usize) -> (Self, Self) {
        let Block8Mut { options, m_codes, v_codes, m_absmax, v_absmax } = self;
        let blocks = elements / options.block as usize;
        let (m_codes, m_codes_rest) = m_codes.split_at_mut(elements);
        let (v_codes, v_codes_rest) = v_codes.split_at_mut(elements);
        let (m_absmax, m_absmax_rest) = m_absmax.split_at_mut(blocks);
        let (v_absmax, v_absmax_rest) = v_absmax.split_at_mut(blocks);
        (
            Block8Mut { options, m_codes, v_codes, m_absmax, v_absmax },
            Block8Mut {
                options,
                m_codes: m_codes_rest,
                v_codes: v_codes_rest,
                m_absmax: m_absmax_rest,
                v_absmax: v_absmax_rest,
            },
        )
    }
}

impl FirstMut<'_> {
    fn split_at(self, elements: usize, options: UState1Q) -> (Self, Self) {
        match self {
            FirstMut::Plain(m) => {
                let (m, rest) = m.split_at_mut(elements);
                (FirstMut::Plain(m), FirstMut::Plain(rest))
            }
            FirstMut::Codes { codes, means, scales } => {
                let (codes, codes_rest) = codes.split_at_mut(elements * CODE_BITS as usize / 8);
                let (means, means_rest) =
                    means.split_at_mut(elements / options.mean_block as usize);
                (
                    FirstMut::Codes { codes, means, scales },
                    FirstMut::Codes { codes: codes_rest, means: means_rest, scales },
                )
            }
        }
    }
}

impl SecondMut<'_> {
    fn split_at(self, elements: usize, options: UState1Q) -> (Self, Self) {
        match self {
            SecondMut::Plain(v) => {
                let (v, rest) = v.split_at_mut(elements);
                (SecondMut::Plain(v), SecondMut::Plain(rest))
            }
            SecondMut::Codes { codes, endpoints } => {
                let (codes, codes_rest) =
                    codes.split_at_mut(elements * options.v_bits as usize / 8);
                let (endpoints, endpoints_rest) =
                    endpoints.split_at_mut(2 * (elements / options.block as usize));
                (
                    SecondMut::Codes { codes, endpoints },
                    SecondMut::Codes { codes: codes_rest, endpoints: endpoints_rest },
                )
            }
        }
    }
}

impl N4l4Mut<'_> {
    fn split_at(self, elements: usize) -> (Self, Self) {
        let N4l4Mut { options, codes, m_units, r_endpoints } = self;
        let (codes, codes_rest) = codes.split_at_mut(elements);
        let (m_units, m_units_rest) = m_units.split_at_mut(elements / options.m_block as usize);
        let (r_endpoints, r_endpoints_rest) =
            r_endpoints.split_at_mut(2 * (elements / options.v_block as usize));
        (
            N4l4Mut { options, codes, m_units, r_endpoints },
            N4l4Mut {
                options,
                codes: codes_rest,
                m_units: m_units_rest,
                r_endpoints: r_endpoints_rest,
            },
        )
    }
}
