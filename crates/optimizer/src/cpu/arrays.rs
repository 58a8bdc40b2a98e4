//! The stored moments of one tensor in this machine's memory: arrays, views of a
//! run of elements, bytes.
//!
//! What a format's arrays are called and how many elements they have comes from
//! `formats`.

use std::borrow::Cow;

use formats::Format;

/// The arrays of one tensor.
#[derive(Clone, Debug)]
pub(crate) enum Arrays {
    /// `m` and `v` as they are.
    Moments { m: Vec<f32>, v: Vec<f32> },
    /// One state word per element.
    Words(Vec<u32>),
}

/// The arrays of a run of elements, for writing.
pub(crate) enum ArraysMut<'a> {
    Moments { m: &'a mut [f32], v: &'a mut [f32] },
    Words(&'a mut [u32]),
}

impl Arrays {
    /// The fresh state of a tensor: all zero bits.
    pub(crate) fn zeros(format: Format, elements: usize) -> Arrays {
        match format {
            Format::Fp32 => Arrays::Moments { m: vec![0.0; elements], v: vec![0.0; elements] },
            Format::Fp16 | Format::E4 | Format::E4s => Arrays::Words(vec![0; elements]),
        }
    }

    /// All elements, for writing.
    pub(crate) fn view_mut(&mut self) -> ArraysMut<'_> {
        match self {
            Arrays::Moments { m, v } => ArraysMut::Moments { m, v },
            Arrays::Words(words) => ArraysMut::Words(words),
        }
    }

    /// The bytes of the elements.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = match self {
            Arrays::Moments { m, v } => size_of_val(&m[..]) + size_of_val(&v[..]),
            Arrays::Words(words) => size_of_val(&words[..]),
        };
        bytes as u64
    }

    /// The little-endian bytes of every section, in the order of
    /// [`Format::sections`].
    pub(crate) fn sections(&self) -> Vec<Cow<'_, [u8]>> {
        match self {
            Arrays::Moments { m, v } => vec![little_endian(m), little_endian(v)],
            Arrays::Words(words) => vec![little_endian(words)],
        }
    }

    /// Overwrites section `section` from little-endian bytes.
    ///
    /// # Panics
    ///
    /// If there is no such section, or it has another length.
    pub(crate) fn overwrite(&mut self, section: usize, bytes: &[u8]) {
        match (self, section) {
            (Arrays::Moments { m, .. }, 0) => from_little_endian(m, bytes, f32::from_le_bytes),
            (Arrays::Moments { v, .. }, 1) => from_little_endian(v, bytes, f32::from_le_bytes),
            (Arrays::Words(words), 0) => from_little_endian(words, bytes, u32::from_le_bytes),
            _ => unreachable!("the sections of a format are those of its arrays"),
        }
    }
}

impl<'a> ArraysMut<'a> {
    /// Cuts after `elements` elements.
    pub(crate) fn split_at(self, elements: usize) -> (ArraysMut<'a>, ArraysMut<'a>) {
        match self {
            ArraysMut::Moments { m, v } => {
                let ((m, m_rest), (v, v_rest)) =
                    (m.split_at_mut(elements), v.split_at_mut(elements));
                (ArraysMut::Moments { m, v }, ArraysMut::Moments { m: m_rest, v: v_rest })
            }
            ArraysMut::Words(words) => {
                let (words, rest) = words.split_at_mut(elements);
                (ArraysMut::Words(words), ArraysMut::Words(rest))
            }
        }
    }
}

/// Elements of 4 bytes as little-endian bytes: a view where the machine stores
/// them so, a copy elsewhere.
fn little_endian<T: bytemuck::NoUninit>(elements: &[T]) -> Cow<'_, [u8]> {
    const { assert!(size_of::<T>() == 4) };
    let bytes: &[u8] = bytemuck::cast_slice(elements);
    if cfg!(target_endian = "little") {
        Cow::Borrowed(bytes)
    } else {
        let (words, _) = bytes.as_chunks::<4>();
        Cow::Owned(words.iter().flat_map(|word| word.iter().rev().copied()).collect())
    }
}

fn from_little_endian<T>(elements: &mut [T], bytes: &[u8], read: fn([u8; 4]) -> T) {
    let (words, _) = bytes.as_chunks::<4>();
    assert_eq!(elements.len(), words.len(), "a section is overwritten whole");
    for (element, word) in elements.iter_mut().zip(words) {
        *element = read(*word);
    }
}
