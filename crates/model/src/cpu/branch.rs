//! The ends of a branch on the CPU: one operation after the other.

use super::{Cpu, Element};
use crate::ops::Branch;

impl<T: Element> Branch for Cpu<T> {}
