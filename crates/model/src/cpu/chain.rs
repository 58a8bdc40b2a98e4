//! What lies between two attentions on the CPU: one operation after the other.

use super::{Cpu, Element};
use crate::ops::Chain;

impl<T: Element> Chain for Cpu<T> {}
