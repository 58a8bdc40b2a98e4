//! Parts of tensors: what an optimizer knows that has a part of a tensor, and others have the rest.
//!
//! Formats of blocks may be cut at borders of blocks, the others anywhere, and no bit changes:
//!
//! | what depends on the whole tensor | how a part has it |
//! |---|---|
//! | random words: seed, update, tensor, index | [`Part`] says which tensor it is, and where it begins |
//! | whether a small tensor stays f32 | [`Part::whole`] |
//! | gradient norm, automatic bias, what is not finite | [`SharedAdamW::measured`](crate::SharedAdamW::measured) |
//! | the scale of `ustate1q` | [`SharedAdamW::spreads`](crate::SharedAdamW::spreads) |
//!
//! The last two are numbers that all who have parts add up. Sums over elements are kept by chunks
//! of 16,384 elements, so that their order stays that of the whole; where they matter, parts begin and end
//! at borders of chunks.

use formats::published_random::Place;

use crate::cpu::norm::CHUNK_ELEMENTS;
use crate::{BiasChoice, Error, Group, OnNonfinite, Options, TensorSpec};

/// What a tensor of an optimizer is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The position of the whole tensor among all whole tensors of the model.
    pub tensor: u32,
    /// The position of the whole tensor among those of its group.
    pub place_in_group: u32,
    /// The position of the part's first element in the whole tensor.
    pub start: u64,
    /// The number of elements of the whole tensor.
    pub whole: u64,
}

impl Part {
    /// What random words of published formats depend on.
    pub(crate) fn place(self, group: usize) -> Place {
        Place { group: group as u32, parameter: self.place_in_group }
    }

    /// Whether elements are missing from `length` elements here.
    fn is_cut(self, length: usize) -> bool {
        length as u64 != self.whole
    }
}

impl TensorSpec {
    /// A whole tensor.
    #[must_use]
    pub fn new(name: impl Into<String>, length: usize, group: usize) -> TensorSpec {
        TensorSpec { name: name.into(), length, group, part: None }
    }

    /// The elements from `start` on, `length` of them, of this tensor, which stands at position `tensor` of
    /// the whole ones and at `place_in_group` of its group. No elements at all are a part too.
    #[must_use]
    pub fn part(&self, tensor: u32, place_in_group: u32, start: u64, length: usize) -> TensorSpec {
        let whole = self.length as u64;
        let part = Some(Part { tensor, place_in_group, start, whole });
        TensorSpec { name: self.name.clone(), length, group: self.group, part }
    }

    /// One part of each of these whole tensors: `range_of` says, for the position of a tensor and its
    /// length, where the part begins and ends.
    #[must_use]
    pub fn parts(
        tensors: &[TensorSpec],
        mut range_of: impl FnMut(usize, usize) -> std::ops::Range<usize>,
    ) -> Vec<TensorSpec> {
        let mut counts = std::collections::HashMap::new();
        let part = |(position, whole): (usize, &TensorSpec)| {
            let count = counts.entry(whole.group).or_insert(0);
            *count += 1;
            let range = range_of(position, whole.length);
            whole.part(position as u32, *count - 1, range.start as u64, range.len())
        };
        tensors.iter().enumerate().map(part).collect()
    }
}

/// The parts that tensors are, those of whole ones too.
pub(crate) fn resolve(tensors: &[TensorSpec], groups: usize) -> Vec<Part> {
    let mut counts = vec![0; groups];
    let part = |(position, spec): (usize, &TensorSpec)| {
        counts[spec.group] += 1;
        let (tensor, place_in_group) = (position as u32, counts[spec.group] - 1);
        spec.part.unwrap_or(Part { tensor, place_in_group, start: 0, whole: spec.length as u64 })
    };
    tensors.iter().enumerate().map(part).collect()
}

/// Whether parts can be worked on by themselves, without a bit that changes.
pub(crate) fn check(
    tensors: &[TensorSpec],
    parts: &[Part],
    groups: &[Group],
    options: Options,
) -> Result<(), Error> {
    let mut seen = std::collections::HashSet::new();
    for (spec, part) in tensors.iter().zip(parts) {
        let name = || spec.name.clone();
        if !seen.insert(part.tensor) {
            return Err(Error::PartTwice { tensor: name(), found: part.tensor });
        }
        let end = part.start.checked_add(spec.length as u64);
        let Some(end) = end.filter(|&end| end <= part.whole) else {
            let (start, length, whole) = (part.start, spec.length, part.whole);
            return Err(Error::PartBeyond { tensor: name(), start, length, whole });
        };
        if !part.is_cut(spec.length) {
            continue;
        }
        if options.on_nonfinite == OnNonfinite::Skip {
            return Err(Error::PartSkips { tensor: name() });
        }
        let (border, why) = border(groups[spec.group], *part, options);
        for found in [part.start, end] {
            if spec.length > 0 && found % border != 0 && found != part.whole {
                return Err(Error::PartBorder { tensor: name(), border, why, found });
            }
        }
    }
    Ok(())
}

/// What parts of a tensor begin and end at multiples of, and why.
fn border(group: Group, part: Part, options: Options) -> (u64, &'static str) {
    let block = u64::from(group.format.for_length(part.whole).block_elements());
    let chunk = CHUNK_ELEMENTS as u64;
    if options.clip_norm.is_some() {
        (chunk, "as the gradient norm that clips is added up")
    } else if group.bias == BiasChoice::Auto && group.format.has_bias() {
        (chunk, "as the gradients that choose a bias are looked at")
    } else if part.whole > u64::from(u32::MAX) {
        (chunk, "as random words of very long tensors are drawn")
    } else {
        (block, "the elements of a block")
    }
}

/// Why a cut tensor in `ustate1q` needs the others' parts.
const SCALE_OF_ALL: &str = "the scale of its first moments is that of all parts";

/// Why moments cannot be stored without the others' parts of a tensor in `format`, if they cannot.
pub(crate) fn needs_scale_of_others(
    spec: &TensorSpec,
    part: &Part,
    format: formats::Format,
) -> Option<Error> {
    (part.is_cut(spec.length) && format.is_bias_corrected())
        .then(|| Error::PartAlone { tensor: spec.name.clone(), reason: SCALE_OF_ALL })
}

/// Why a tensor cannot be updated without the others' parts of it, if it cannot.
pub(crate) fn needs_others(
    tensors: &[TensorSpec],
    parts: &[Part],
    groups: &[Group],
    options: Options,
) -> Option<Error> {
    let reason = |spec: &TensorSpec, part: &Part| {
        let group = groups[spec.group];
        if options.clip_norm.is_some() {
            Some("clipping needs the gradient norm of all parts")
        } else if options.on_nonfinite == OnNonfinite::Hold {
            Some("all parts stop where a gradient of one is not finite")
        } else if group.bias == BiasChoice::Auto && group.format.has_bias() {
            Some("its bias is chosen by the gradients of all parts")
        } else if group.format.for_length(part.whole).is_bias_corrected() {
            Some(SCALE_OF_ALL)
        } else {
            None
        }
    };
    tensors.iter().zip(parts).filter(|(spec, part)| part.is_cut(spec.length)).find_map(
        |(spec, part)| {
            let reason = reason(spec, part)?;
            Some(Error::PartAlone { tensor: spec.name.clone(), reason })
        },
    )
}
