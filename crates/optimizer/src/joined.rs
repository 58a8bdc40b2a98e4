//! Saved states of parts, joined to that of whole tensors; a part takes its share of that by itself when it is
//! loaded.

use std::borrow::Cow;
use std::ops::Range;

use crate::parts::Part;
use crate::saved::{SavedArray, SavedState};
use crate::{Error, TensorSpec};

/// The array that belongs to a tensor as a whole.
const OF_TENSOR: &str = "m_scales";

/// The key of what a tensor is a part of.
pub(crate) fn part_key(tensor: &str) -> String {
    format!("{tensor}.part")
}

/// What saved states say of a part.
pub(crate) fn part_text(tensor: &TensorSpec, part: Part) -> String {
    format!("{}..{} of {}", part.start, part.start + tensor.length as u64, part.whole)
}

fn range_of(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, whole) = text.split_once(" of ")?;
    let (start, end) = range.split_once("..")?;
    let (start, end) = (start.parse().ok()?, end.parse().ok()?);
    (start <= end).then_some((start..end, whole.parse().ok()?))
}

/// The bytes of the array of a whole tensor that a part begins at; `bytes_before` are those of the elements
/// before it.
pub(crate) fn first_byte(array: &str, bytes_before: u64) -> usize {
    if array == OF_TENSOR { 0 } else { bytes_before as usize }
}

impl SavedState<'_> {
    /// The state of whole tensors, of which these are the parts, in any order.
    ///
    /// # Errors
    ///
    /// If there is no state, they differ in more than their parts, or parts are missing or there twice.
    pub fn join(states: &[SavedState<'_>]) -> Result<SavedState<'static>, Error> {
        let Some(first) = states.first() else {
            return Err(Error::PartsMissing { name: "any tensor".to_owned(), found: 0, whole: 0 });
        };
        let mut metadata = first.metadata.clone();
        metadata.retain(|key, _| !key.ends_with(".part"));
        for state in &states[1..] {
            for (key, expected) in &metadata {
                let found = state.metadata.get(key).cloned().unwrap_or_default();
                if *expected != found {
                    let (key, expected) = (key.clone(), expected.clone());
                    return Err(Error::MetadataDiffers { key, expected, found });
                }
            }
        }
        let arrays = first.arrays.iter().map(|array| joined(states, array));
        Ok(SavedState { arrays: arrays.collect::<Result<_, _>>()?, metadata })
    }
}

/// An array of all states, of which `array` is the first one's.
fn joined(states: &[SavedState<'_>], array: &SavedArray<'_>) -> Result<SavedArray<'static>, Error> {
    let name = &array.name;
    let missing = |found, whole| Error::PartsMissing { name: name.clone(), found, whole };
    let (tensor, section) = name.rsplit_once('.').ok_or_else(|| missing(0, 0))?;
    let mut bytes: Vec<u8> = array.bytes.to_vec();
    if first_part(&states[0], tensor).is_some() {
        let mut parts = Vec::new();
        for state in states {
            let own = state.arrays.iter().find(|own| own.name == *name);
            let part = first_part(state, tensor);
            let ((range, whole), own) = part.zip(own).ok_or_else(|| missing(0, 0))?;
            parts.push((range, whole, own));
        }
        parts.retain(|(range, _, _)| !range.is_empty());
        parts.sort_by_key(|(range, _, _)| range.start);
        let (mut end, mut total) = (0, 0);
        bytes = Vec::new();
        for (range, whole, own) in &parts {
            if range.start != end {
                return Err(missing(end, *whole));
            }
            (end, total) = (range.end, *whole);
            if section == OF_TENSOR {
                bytes.clear();
            }
            bytes.extend_from_slice(&own.bytes);
        }
        if end != total {
            return Err(missing(end, total));
        }
        if parts.is_empty() && section == OF_TENSOR {
            bytes = array.bytes.to_vec();
        }
    }
    let count = bytes.len() / array.element.bytes() as usize;
    let bytes = Cow::Owned(bytes);
    Ok(SavedArray { name: name.clone(), element: array.element, shape: vec![count], bytes })
}

fn first_part(state: &SavedState<'_>, tensor: &str) -> Option<(Range<u64>, u64)> {
    range_of(state.metadata.get(&part_key(tensor))?)
}
