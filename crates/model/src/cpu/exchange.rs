//! Ranks on processors exchange gradients in the memory of the host; the device itself has no part in it.

use super::{Cpu, Element};
use crate::ops::Exchange;

impl<E: Element> Exchange for Cpu<E> {}
