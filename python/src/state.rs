//! Stored moments as Python has them, and the names of formats.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ::formats::{ElementType, Format};
use optimizer::{DecodedMoments, SavedArray, SavedState};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::engine::refused;

/// An array: name, element type, bytes.
pub type Array = (String, String, Vec<u8>);
/// Arrays, and what belongs to them.
pub type Saved = (Vec<(String, &'static str, Py<PyBytes>)>, BTreeMap<String, String>);

/// The element types by the names of safetensors.
const ELEMENTS: [(ElementType, &str); 5] = [
    (ElementType::U8, "U8"),
    (ElementType::F16, "F16"),
    (ElementType::Bf16, "BF16"),
    (ElementType::U32, "U32"),
    (ElementType::F32, "F32"),
];

/// Every format: name, bits of state a parameter, whether its numbers have an exponent bias.
#[pyfunction]
pub fn formats() -> Vec<(&'static str, f64, bool)> {
    let row = |format: Format| (format.name(), format.bits_per_parameter(), format.has_bias());
    Format::ALL.into_iter().map(row).collect()
}

/// The format of a name.
pub fn format(name: &str) -> PyResult<Format> {
    name.parse().map_err(refused)
}

pub fn to_python(py: Python<'_>, saved: &SavedState<'_>) -> Saved {
    let array = |array: &SavedArray<'_>| {
        let known = ELEMENTS.into_iter().find(|&(element, _)| element == array.element);
        let (_, element) = known.expect("every element type has a name");
        (array.name.clone(), element, PyBytes::new(py, &array.bytes).unbind())
    };
    (saved.arrays.iter().map(array).collect(), saved.metadata.clone())
}

/// A state to load: the arrays, and `entries` in the place of an optimizer's `own` that have their keys.
pub fn from_python(
    arrays: Vec<Array>,
    entries: Vec<(String, String)>,
    own: BTreeMap<String, String>,
) -> PyResult<SavedState<'static>> {
    let array = |(name, element, bytes): Array| {
        let known = ELEMENTS.into_iter().find(|&(_, name)| name == element);
        let Some((element, _)) = known else {
            return Err(PyValueError::new_err(format!(
                "array {name:?}: no element type {element:?}"
            )));
        };
        let size = element.bytes() as usize;
        let shape = vec![bytes.len() / size];
        Ok(SavedArray { name, element, shape, bytes: Cow::Owned(bytes) })
    };
    let arrays = arrays.into_iter().map(array).collect::<PyResult<Vec<_>>>()?;
    let mut metadata = own;
    metadata.extend(entries);
    Ok(SavedState { arrays, metadata })
}

/// The state of whole tensors, of whose parts these are the states: arrays, and what belongs to them.
#[pyfunction]
pub fn join(
    py: Python<'_>,
    parts: Vec<(Vec<Array>, BTreeMap<String, String>)>,
) -> PyResult<Saved> {
    let state = |(arrays, metadata)| from_python(arrays, Vec::new(), metadata);
    let states: Vec<SavedState<'_>> =
        parts.into_iter().map(state).collect::<PyResult<_>>()?;
    Ok(to_python(py, &SavedState::join(&states).map_err(refused)?))
}

/// Numbers as bytes.
pub fn bytes_of<'py>(py: Python<'py>, numbers: &[f32]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    PyBytes::new(py, &bytes)
}

/// Moments from bytes.
pub fn moments(m: &[u8], v: &[u8]) -> PyResult<DecodedMoments> {
    let numbers = |bytes: &[u8]| -> PyResult<Vec<f32>> {
        let (whole, rest) = bytes.as_chunks::<4>();
        if rest.is_empty() {
            Ok(whole.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
        } else {
            Err(PyValueError::new_err(format!("expected f32 numbers, found {} bytes", bytes.len())))
        }
    };
    Ok(DecodedMoments { m: numbers(m)?, v: numbers(v)? })
}

/// The elements that a format keeps together of a tensor of as many: its parts are cut at multiples of them.
#[pyfunction]
pub fn block_elements(name: &str, elements: u64) -> PyResult<u32> {
    Ok(format(name)?.for_length(elements).block_elements())
}

/// The exponent bias of formats that have one, where none is given.
#[pyfunction]
pub fn default_bias() -> u32 {
    ::formats::Bias::DEFAULT.get()
}
