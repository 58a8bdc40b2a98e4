//! Buffers of many tensors, flat or one slice per tensor, cut the same way.
//!
//! Parallel work splits the list of tensors in two until one is left; parameters
//! and gradients follow, whichever way they lie in memory.

use crate::{Error, TensorSpec};

/// The parameters of a run of tensors.
pub(crate) enum Parameters<'a, 'b> {
    /// One tensor after the other.
    Flat(&'a mut [f32]),
    /// A slice for each tensor.
    Separate(&'a mut [&'b mut [f32]]),
    /// None, for a pass that only looks at gradients.
    Absent,
}

/// The gradients of a run of tensors.
#[derive(Clone, Copy)]
pub(crate) enum Gradients<'a> {
    /// One tensor after the other.
    Flat(&'a [f32]),
    /// A slice for each tensor.
    Separate(&'a [&'a [f32]]),
}

impl<'a, 'b> Parameters<'a, 'b> {
    /// The same parameters, for a shorter time.
    pub(crate) fn reborrow(&mut self) -> Parameters<'_, 'b> {
        match self {
            Parameters::Flat(flat) => Parameters::Flat(flat),
            Parameters::Separate(slices) => Parameters::Separate(slices),
            Parameters::Absent => Parameters::Absent,
        }
    }

    /// Cuts after the first `tensors` tensors, which have `elements` elements.
    pub(crate) fn split_at(self, tensors: usize, elements: usize) -> (Self, Self) {
        match self {
            Parameters::Flat(flat) => {
                let (left, right) = flat.split_at_mut(elements);
                (Parameters::Flat(left), Parameters::Flat(right))
            }
            Parameters::Separate(slices) => {
                let (left, right) = slices.split_at_mut(tensors);
                (Parameters::Separate(left), Parameters::Separate(right))
            }
            Parameters::Absent => (Parameters::Absent, Parameters::Absent),
        }
    }

    /// The elements of the only tensor left.
    pub(crate) fn only(self) -> &'a mut [f32] {
        match self {
            Parameters::Flat(flat) => flat,
            Parameters::Separate(slices) => slices[0],
            Parameters::Absent => &mut [],
        }
    }

    /// Whether they fit `tensors`, which have `elements` elements together.
    pub(crate) fn check(&self, tensors: &[TensorSpec], elements: usize) -> Result<(), Error> {
        match self {
            Parameters::Flat(flat) => check_flat("parameters", flat.len(), elements),
            Parameters::Separate(slices) => {
                check_separate("parameters", slices.iter().map(|slice| slice.len()), tensors)
            }
            Parameters::Absent => Ok(()),
        }
    }
}

impl<'a> Gradients<'a> {
    /// As [`Parameters::split_at`].
    pub(crate) fn split_at(self, tensors: usize, elements: usize) -> (Self, Self) {
        match self {
            Gradients::Flat(flat) => {
                let (left, right) = flat.split_at(elements);
                (Gradients::Flat(left), Gradients::Flat(right))
            }
            Gradients::Separate(slices) => {
                let (left, right) = slices.split_at(tensors);
                (Gradients::Separate(left), Gradients::Separate(right))
            }
        }
    }

    /// As [`Parameters::only`].
    pub(crate) fn only(self) -> &'a [f32] {
        match self {
            Gradients::Flat(flat) => flat,
            Gradients::Separate(slices) => slices[0],
        }
    }

    /// As [`Parameters::check`].
    pub(crate) fn check(self, tensors: &[TensorSpec], elements: usize) -> Result<(), Error> {
        match self {
            Gradients::Flat(flat) => check_flat("gradients", flat.len(), elements),
            Gradients::Separate(slices) => {
                check_separate("gradients", slices.iter().map(|slice| slice.len()), tensors)
            }
        }
    }
}

fn check_flat(buffer: &str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected {
        Ok(())
    } else {
        Err(Error::BufferLength { buffer: buffer.to_owned(), expected, found })
    }
}

fn check_separate(
    buffer: &'static str,
    lengths: impl ExactSizeIterator<Item = usize>,
    tensors: &[TensorSpec],
) -> Result<(), Error> {
    if lengths.len() != tensors.len() {
        return Err(Error::SliceCount { buffer, expected: tensors.len(), found: lengths.len() });
    }
    for (found, TensorSpec { name, length, .. }) in lengths.zip(tensors) {
        if found != *length {
            let buffer = format!("{buffer} of tensor {name:?}");
            return Err(Error::BufferLength { buffer, expected: *length, found });
        }
    }
    Ok(())
}
