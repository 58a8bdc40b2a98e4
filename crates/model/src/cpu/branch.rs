//! The ends of a branch on the CPU, and what lies between attention and the next: one operation after the other.

use super::{Cpu, Element};
use crate::ops::{Branch, Chain};

impl<T: Element> Branch for Cpu<T> {}
impl<T: Element> Chain for Cpu<T> {}
