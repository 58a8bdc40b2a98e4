//! Work on parameters beside a pass on a CPU: one after the other.

use super::{Cpu, Element};
use crate::ops::Beside;

impl<T: Element> Beside for Cpu<T> {
    type Stream = ();
    type Copy = ();

    fn stream(&self) -> &() {
        &()
    }

    fn parameter_copy(&self, _: &Vec<T>) -> Option<()> {
        None
    }
}
