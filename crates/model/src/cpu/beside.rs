//! What an optimizer does beside a pass on the processor: nothing, since a pass leaves no thread idle.

use super::{Cpu, Element};
use crate::ops::Beside;

impl<E: Element> Beside for Cpu<E> {
    type LaterUpdate = ();
}
