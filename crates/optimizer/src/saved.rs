//! Saved moments: named arrays and metadata, and the check that they belong to an
//! optimizer before anything is taken over.
//!
//! The learning rate is not among the metadata, since a schedule sets it anew, nor
//! is what a non-finite element leads to, since one resumes with another choice
//! after a stop. Everything else that changes a bit of the next update is.

use std::borrow::Cow;
use std::collections::BTreeMap;

use formats::half_floats::binary16_to_f32;
use formats::{Bias, ElementType, Format, Fp16Word, Section};

use crate::groups::Layout;
use crate::joined::{first_byte, part_key, part_text};
use crate::{BiasChoice, Error};

/// The version of the names and meanings below.
const VERSION: u32 = 1;
const VERSION_KEY: &str = "optimizer.version";
const UPDATE_KEY: &str = "optimizer.update";
/// The update that wrote the state, where a decode depends on it.
const WRITTEN_KEY: &str = "optimizer.written";

/// The moments of all tensors at rest.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedState<'a> {
    /// The arrays, named `<tensor>.<section>`.
    pub arrays: Vec<SavedArray<'a>>,
    /// What must match when they are loaded, and the update they belong to.
    pub metadata: BTreeMap<String, String>,
}

/// One named array.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedArray<'a> {
    /// The name.
    pub name: String,
    /// The type of the elements.
    pub element: ElementType,
    /// The shape; arrays are flat so far.
    pub shape: Vec<usize>,
    /// The elements, little-endian.
    pub bytes: Cow<'a, [u8]>,
}

impl SavedState<'_> {
    /// The same state in memory of its own.
    #[must_use]
    pub fn into_owned(self) -> SavedState<'static> {
        let arrays = self.arrays.into_iter().map(|array| SavedArray {
            name: array.name,
            element: array.element,
            shape: array.shape,
            bytes: Cow::Owned(array.bytes.into_owned()),
        });
        SavedState { arrays: arrays.collect(), metadata: self.metadata }
    }
}

/// Saved state that fits: what is left to take over.
pub(crate) struct Accepted<'a> {
    pub(crate) update: u64,
    /// The update that wrote the state; `update` where nothing depends on it.
    pub(crate) written: u64,
    /// The bias of every tensor; `None` where it is not chosen yet.
    pub(crate) biases: Vec<Option<Bias>>,
    /// The bytes of every section of every tensor.
    pub(crate) sections: Vec<Vec<&'a [u8]>>,
}

/// An element that no update can have stored.
struct Invalid {
    index: usize,
    expected: &'static str,
    found: String,
}

/// The metadata of an optimizer after `update` updates. `biases` has one entry per
/// tensor.
pub(crate) fn metadata(
    layout: &Layout,
    update: u64,
    written: u64,
    biases: &[Option<Bias>],
) -> BTreeMap<String, String> {
    let mut metadata = fixed_metadata(layout);
    metadata.insert(UPDATE_KEY.to_owned(), update.to_string());
    if is_bias_corrected(layout) {
        metadata.insert(WRITTEN_KEY.to_owned(), written.to_string());
    }
    for (tensor, part) in layout.tensors.iter().zip(&layout.parts) {
        if tensor.part.is_some() {
            metadata.insert(part_key(&tensor.name), part_text(tensor, *part));
        }
    }
    for (position, (tensor, bias)) in layout.tensors.iter().zip(biases).enumerate() {
        if layout.group_of(position).format.has_bias() {
            let bias = bias.map_or_else(|| "unset".to_owned(), |bias| bias.to_string());
            metadata.insert(bias_key(&tensor.name), bias);
        }
    }
    metadata
}

/// Checks that `state` was saved by an optimizer with this layout, and is whole. A part takes its share of the
/// state of a whole tensor.
pub(crate) fn accept<'a>(
    layout: &Layout,
    state: &'a SavedState<'_>,
) -> Result<Accepted<'a>, Error> {
    for (key, expected) in fixed_metadata(layout) {
        let found = entry(state, &key, &expected)?;
        if *found != expected {
            return Err(Error::MetadataDiffers { key, expected, found: found.clone() });
        }
    }
    let number = |key: &str| -> Result<u64, Error> {
        let expected = "a number of updates";
        let found = entry(state, key, expected)?;
        found.parse().map_err(|_| differs(key, expected, found))
    };
    let update = number(UPDATE_KEY)?;
    let written = if is_bias_corrected(layout) { number(WRITTEN_KEY)? } else { update };

    let mut arrays = BTreeMap::new();
    for array in &state.arrays {
        if arrays.insert(array.name.as_str(), array).is_some() {
            return Err(Error::SectionUnexpected { name: array.name.clone() });
        }
    }
    let mut accepted = Accepted { update, written, biases: Vec::new(), sections: Vec::new() };
    for position in 0..layout.tensors.len() {
        accepted.biases.push(accept_bias(layout, position, state)?);
        accepted.sections.push(accept_sections(layout, position, state, &mut arrays)?);
    }
    match arrays.into_keys().next() {
        None => Ok(accepted),
        Some(name) => Err(Error::SectionUnexpected { name: name.to_owned() }),
    }
}

/// The entries that follow from tensors, groups and options alone.
fn fixed_metadata(layout: &Layout) -> BTreeMap<String, String> {
    let mut entries = BTreeMap::new();
    entries.insert(VERSION_KEY.to_owned(), VERSION.to_string());
    let clip_norm = layout.options.clip_norm;
    let clip_norm = clip_norm.map_or_else(|| "none".to_owned(), |norm| format!("{norm:?}"));
    entries.insert("optimizer.clip_norm".to_owned(), clip_norm);
    if layout.groups.iter().any(|group| group.format.is_stochastic()) {
        entries.insert("optimizer.seed".to_owned(), layout.options.seed.to_string());
    }
    if layout.has_maps() {
        entries.insert("optimizer.maps".to_owned(), layout.maps_name.clone());
    }
    for (position, tensor) in layout.tensors.iter().enumerate() {
        let group = layout.group_of(position);
        let [beta1, beta2] = group.betas;
        let mut insert = |what: &str, text: String| {
            entries.insert(format!("{}.{what}", tensor.name), text);
        };
        insert("format", group.format.to_string());
        insert(
            "hyperparameters",
            format!(
                "beta1 {beta1:?} beta2 {beta2:?} eps {:?} weight_decay {:?}",
                group.eps, group.weight_decay
            ),
        );
        if group.format.has_bias() {
            let choice = match group.bias {
                BiasChoice::Fixed(_) => "fixed",
                BiasChoice::Auto => "auto",
            };
            insert("bias_choice", choice.to_owned());
        }
    }
    entries
}

/// Whether the state of a tensor means something else at another update.
fn is_bias_corrected(layout: &Layout) -> bool {
    (0..layout.tensors.len()).any(|tensor| layout.format_of(tensor).is_bias_corrected())
}

fn bias_key(tensor: &str) -> String {
    format!("{tensor}.bias")
}

fn entry<'a>(state: &'a SavedState<'_>, key: &str, expected: &str) -> Result<&'a String, Error> {
    state.metadata.get(key).ok_or_else(|| Error::MetadataMissing {
        key: key.to_owned(),
        expected: expected.to_owned(),
    })
}

fn differs(key: &str, expected: &str, found: &str) -> Error {
    Error::MetadataDiffers {
        key: key.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}

/// The saved bias of a tensor, which must be the group's if that one is fixed.
fn accept_bias(
    layout: &Layout,
    position: usize,
    state: &SavedState<'_>,
) -> Result<Option<Bias>, Error> {
    let group = layout.group_of(position);
    if !group.format.has_bias() {
        return Ok(group.initial_bias());
    }
    let key = bias_key(&layout.tensors[position].name);
    let expected = match group.bias {
        BiasChoice::Fixed(bias) => bias.to_string(),
        BiasChoice::Auto => format!("{} to {} or unset", Bias::MIN, Bias::MAX),
    };
    let found = entry(state, &key, &expected)?;
    let saved = match found.as_str() {
        "unset" => None,
        text => match text.parse().map(Bias::new) {
            Ok(Ok(bias)) => Some(bias),
            _ => return Err(differs(&key, &expected, found)),
        },
    };
    match group.bias {
        BiasChoice::Fixed(bias) if saved != Some(bias) => Err(differs(&key, &expected, found)),
        _ => Ok(saved),
    }
}

/// Which arrays a tensor's own are taken from, and where they begin there.
struct Share {
    sections: Vec<Section>,
    first_bytes: Vec<usize>,
}

/// The arrays themselves, or those of the whole tensor that this is a part of.
fn share(layout: &Layout, position: usize, state: &SavedState<'_>) -> Result<Share, Error> {
    let (tensor, part) = (&layout.tensors[position], layout.parts[position]);
    let key = part_key(&tensor.name);
    let expected = part_text(tensor, part);
    let own = || Share {
        sections: layout.arrays_of(position).collect(),
        first_bytes: vec![0; layout.arrays_of(position).count()],
    };
    match state.metadata.get(&key) {
        Some(found) if tensor.part.is_none() => Err(differs(&key, "none of a whole tensor", found)),
        Some(found) if *found != expected => Err(differs(&key, &expected, found)),
        None if tensor.part.is_some() => {
            let format = layout.format_of(position);
            let before = format.arrays(part.start);
            let first = |section: Section| first_byte(section.name, section.bytes());
            // What is empty may be said to begin anywhere.
            let first_bytes =
                if tensor.length == 0 { own().first_bytes } else { before.map(first).collect() };
            Ok(Share { sections: format.arrays(part.whole).collect(), first_bytes })
        }
        _ => Ok(own()),
    }
}

/// Takes the arrays of a tensor out of `arrays`, each checked whole.
fn accept_sections<'a>(
    layout: &Layout,
    position: usize,
    state: &SavedState<'_>,
    arrays: &mut BTreeMap<&'a str, &'a SavedArray<'_>>,
) -> Result<Vec<&'a [u8]>, Error> {
    let format = layout.format_of(position);
    let tensor = &layout.tensors[position];
    let mut accepted = Vec::new();
    let share = share(layout, position, state)?;
    for (number, section) in layout.arrays_of(position).enumerate() {
        let own_bytes = section.bytes() as usize;
        let Section { name, element, count, .. } = share.sections[number];
        let (name, count) = (section_name(&tensor.name, name), count as usize);
        let Some(array) = arrays.remove(name.as_str()) else {
            return Err(Error::SectionMissing { name, element, count });
        };
        if array.element != element || array.shape != [count] {
            return Err(Error::SectionShape {
                name,
                expected_element: element,
                expected_count: count,
                found_element: array.element,
                found_shape: array.shape.clone(),
            });
        }
        let (expected, found) = (count * element.bytes() as usize, array.bytes.len());
        if found != expected {
            return Err(Error::SectionBytes { name, expected, found });
        }
        if let Some(invalid) = find_invalid(format, section.name, &array.bytes) {
            let (index, expected, found) = (invalid.index, invalid.expected, invalid.found);
            return Err(Error::SectionContent { name, index, expected, found });
        }
        let first = share.first_bytes[number];
        accepted.push(&array.bytes[first..first + own_bytes]);
    }
    Ok(accepted)
}

/// Looks for an element that no update can have stored in section `section`.
fn find_invalid(format: Format, section: &str, bytes: &[u8]) -> Option<Invalid> {
    let words = || bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    let halves = || bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half));
    let is_finite = |bits: u32| f32::from_bits(bits).is_finite();
    let is_magnitude = |bits: u32| (0.0..f32::INFINITY).contains(&f32::from_bits(bits));
    let (signed, magnitude) = ("a finite number", "a finite number that is not negative");
    let number = |bits: u32| format!("{:e}", f32::from_bits(bits));
    let invalid = |index, expected, found| Some(Invalid { index, expected, found });
    match (format, section) {
        (Format::Fp16, _) => {
            let index = words().position(|word| !Fp16Word::is_valid(word))?;
            let expected = "finite halves, the upper one not negative";
            invalid(index, expected, format!("{:#010x}", words().nth(index)?))
        }
        (_, "m") => {
            let index = words().position(|bits| !is_finite(bits))?;
            invalid(index, signed, number(words().nth(index)?))
        }
        (Format::Block8(_), "m_absmax" | "v_absmax") | (_, "v" | "m_scales") => {
            let index = words().position(|bits| !is_magnitude(bits))?;
            invalid(index, magnitude, number(words().nth(index)?))
        }
        (_, "m_absmax" | "m_means") => {
            let bits = |half: u16| u32::from(half) << 16;
            let is_good = if section == "m_means" { is_finite } else { is_magnitude };
            let index = halves().position(|half| !is_good(bits(half)))?;
            let expected = if section == "m_means" { signed } else { magnitude };
            invalid(index, expected, number(bits(halves().nth(index)?)))
        }
        (_, "v_endpoints") => {
            // Logarithms of f32 numbers.
            let log = |half: u16| binary16_to_f32(half);
            let is_good = |half: u16| half & 0x7C00 != 0x7C00 && log(half).abs() <= 104.0;
            let index = halves().position(|half| !is_good(half))?;
            let found = format!("{:#06x}", halves().nth(index)?);
            invalid(index, "a logarithm from -104 to 104", found)
        }
        _ => None,
    }
}

/// The name of an array in a checkpoint.
pub(crate) fn section_name(tensor: &str, section: &str) -> String {
    format!("{tensor}.{section}")
}
