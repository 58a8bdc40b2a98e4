//! Ranks on processors exchange gradients in the memory of the host; the device itself has no part in it.

use std::ops::Range;

use super::{Cpu, Element, filled};
use crate::Error;
use crate::ops::Exchange;

impl<T: Element> Exchange for Cpu<T> {
    type Numbers = [f64];

    fn add_numbers<E: From<Error>>(
        &self,
        numbers: &mut [f64],
        on_host: impl FnOnce(&mut [f64]) -> Result<(), E>,
    ) -> Result<(), E> {
        on_host(numbers)
    }

    fn part(&self, floats: &Vec<T>, range: Range<usize>) -> Result<Vec<T>, Error> {
        let mut part = filled(T::ZERO, range.len())?;
        self.take_part(floats, range, &mut part);
        Ok(part)
    }

    fn take_part(&self, floats: &Vec<T>, range: Range<usize>, part: &mut Vec<T>) {
        part.copy_from_slice(&floats[range]);
    }

    fn put_part(&self, floats: &mut Vec<T>, range: Range<usize>, part: &Vec<T>) {
        floats[range].copy_from_slice(part);
    }
}
