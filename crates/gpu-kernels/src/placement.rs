//! Tensors that lie anywhere in device memory, in allocations of somebody else.

#![expect(unsafe_code, reason = "a caller vouches for addresses")]

use crate::Error;
use crate::kind::{GradientType, Kind, ParameterType};

/// Where one tensor lies: addresses in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorPlace {
    /// Its parameters: f32, or the bf16 halves of split ones.
    pub parameters: u64,
    /// The remainder bits of split parameters; 0 without.
    pub remainders: u64,
    /// Its gradients.
    pub gradients: u64,
    /// The number of elements.
    pub length: usize,
    /// The type of the parameters.
    pub parameter_type: ParameterType,
    /// The type of the gradients.
    pub gradient_type: GradientType,
}

/// Where the tensors of a model lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement(Vec<TensorPlace>);

/// A stretch of memory with a name.
struct Stretch {
    start: u64,
    end: u64,
    tensor: usize,
    what: &'static str,
    is_written: bool,
}

impl Placement {
    /// Tensors at these places, in the order of a model's.
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`] where an address does not fit its elements, and [`Error::Overlap`] where
    /// what is written shares memory with anything else.
    ///
    /// # Safety
    ///
    /// 1. Until the last step over this placement is done, all addresses are those of memory of the
    ///    model's device, as long as their elements ask for.
    /// 2. Nothing else uses that memory meanwhile, but work that is ordered with the steps.
    pub unsafe fn new(tensors: Vec<TensorPlace>) -> Result<Placement, Error> {
        let mut stretches: Vec<Stretch> = Vec::with_capacity(3 * tensors.len());
        for (position, tensor) in tensors.iter().enumerate() {
            let is_split = tensor.parameter_type == ParameterType::Split;
            let remainder_bytes = if is_split { 2 } else { 0 };
            let arrays = [
                ("parameters", tensor.parameters, tensor.parameter_type.bytes(), true),
                ("remainders", tensor.remainders, remainder_bytes, true),
                ("gradients", tensor.gradients, tensor.gradient_type.bytes(), false),
            ];
            for (what, address, bytes, is_written) in arrays {
                if bytes == 0 || tensor.length == 0 {
                    continue;
                }
                if address % bytes != 0 {
                    let what = name(what, position);
                    return Err(Error::Misaligned { what, bytes, address });
                }
                let end = address + tensor.length as u64 * bytes;
                stretches.push(Stretch { start: address, end, tensor: position, what, is_written });
            }
        }
        check_apart(&mut stretches)?;
        Ok(Placement(tensors))
    }

    /// The places.
    #[must_use]
    pub fn tensors(&self) -> &[TensorPlace] {
        &self.0
    }

    /// Whether they are of these kinds and lengths.
    pub(crate) fn check(&self, kinds: &[Kind], lengths: &[u64]) -> Result<(), Error> {
        if self.0.len() != kinds.len() {
            let (expected, found) = (kinds.len(), self.0.len());
            return Err(Error::Length { what: "the tensors".to_owned(), expected, found });
        }
        for (position, (place, (kind, &length))) in
            self.0.iter().zip(kinds.iter().zip(lengths)).enumerate()
        {
            let (expected, found) = (length as usize, place.length);
            if expected != found {
                let what = name("parameters", position);
                return Err(Error::Length { what, expected, found });
            }
            let types = [
                ("parameters", kind.parameters.name(), place.parameter_type.name()),
                ("gradients", kind.gradients.name(), place.gradient_type.name()),
            ];
            if let Some((what, expected, found)) = types.into_iter().find(|(_, e, f)| e != f) {
                return Err(Error::OtherType { what, expected, found });
            }
        }
        Ok(())
    }
}

/// Whether what is written shares no memory with anything.
fn check_apart(stretches: &mut [Stretch]) -> Result<(), Error> {
    stretches.sort_by_key(|stretch| (stretch.start, stretch.end));
    // The one that reaches farthest so far, among all and among those that are written.
    let mut farthest: Option<&Stretch> = None;
    let mut farthest_written: Option<&Stretch> = None;
    for stretch in stretches.iter() {
        let before = if stretch.is_written { farthest } else { farthest_written };
        if let Some(before) = before.filter(|before| before.end > stretch.start) {
            let named = |stretch: &Stretch| name(stretch.what, stretch.tensor);
            return Err(Error::Overlap { first: named(before), second: named(stretch) });
        }
        let reaches = |other: Option<&Stretch>| other.is_none_or(|other| stretch.end > other.end);
        if reaches(farthest) {
            farthest = Some(stretch);
        }
        if stretch.is_written && reaches(farthest_written) {
            farthest_written = Some(stretch);
        }
    }
    Ok(())
}

fn name(what: &str, tensor: usize) -> String {
    format!("the {what} of tensor {tensor}")
}
