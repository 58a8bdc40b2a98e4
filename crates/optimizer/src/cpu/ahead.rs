//! Lines of memory asked for ahead of their use.
//!
//! What a unit of a format of blocks computes takes longer than the processor looks ahead, so that it would first compute
//! and then wait. It asks for parameters and gradients of a later unit meanwhile, one line of each at a time: more than
//! some twenty on their way together make it wait as well.

use super::kernel::LINE_ELEMENTS;
use crate::simd::Place;

/// The lines to ask for next.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    parameters: Place<f32>,
    gradients: Place<f32>,
    /// The element whose lines are next.
    element: usize,
}

impl Ahead {
    /// Of these arrays.
    pub(crate) fn new(parameters: &[f32], gradients: &[f32]) -> Ahead {
        Ahead { parameters: Place::of(parameters), gradients: Place::of(gradients), element: 0 }
    }

    /// Goes on at an element, which may lie beyond the last.
    #[inline(always)]
    pub(crate) fn go_on_at(&mut self, element: usize) {
        self.element = element;
    }

    /// Asks for the next line of each.
    #[inline(always)]
    pub(crate) fn ask(&mut self) {
        self.parameters.prefetch(self.element);
        self.gradients.prefetch(self.element);
        self.element += LINE_ELEMENTS;
    }
}
