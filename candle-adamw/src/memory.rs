//! Candle's memory as slices: of variables to write, and of gradients to read.
//!
//! Candle lends the memory of a variable to an operation while it runs, so operations are nested, one in another,
//! until the memory of all variables is there at once.

use std::cell::RefCell;

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Storage, Tensor, Var, bail};

/// What works on the parameters of all variables.
type Step<'a> = &'a mut dyn FnMut(&mut [&mut [f32]]) -> Result<()>;

/// The gradients of variables in their order, contiguous and in the memory of the processor.
pub fn gradients(variables: &[Var], gradients: &GradStore) -> Result<Vec<Tensor>> {
    let of = |var: &Var| match gradients.get(var) {
        Some(gradient) => gradient.to_device(&Device::Cpu)?.contiguous(),
        None => Tensor::zeros(var.shape(), var.dtype(), &Device::Cpu),
    };
    variables.iter().map(of).collect()
}

/// Lends the elements of all gradients to `read`.
pub fn with_gradients(
    gradients: &[Tensor],
    read: &mut dyn FnMut(&[&[f32]]) -> Result<()>,
) -> Result<()> {
    let lent: Vec<_> = gradients.iter().map(Tensor::storage_and_layout).collect();
    let mut slices = Vec::with_capacity(lent.len());
    for (storage, layout) in &lent {
        match &**storage {
            Storage::Cpu(CpuStorage::F32(values)) => slices.push(part(values, layout)?),
            _ => bail!("expected a gradient in f32"),
        }
    }
    read(&slices)
}

/// Lends the memory of `variables`, with that of others taken before, to `step`.
pub fn in_place(variables: &[Var], taken: Vec<&mut [f32]>, step: Step<'_>) -> Result<()> {
    match variables.split_first() {
        None => {
            let mut taken = taken;
            step(&mut taken)
        }
        Some((var, rest)) => {
            var.inplace_op1(&Nested { taken: RefCell::new(taken), rest, step: RefCell::new(step) })
        }
    }
}

/// Has `step` work on copies of the variables in the host's memory, and writes them back.
pub fn through_host(variables: &[Var], step: Step<'_>) -> Result<()> {
    let values = |var: &Var| var.flatten_all()?.to_vec1::<f32>();
    let mut copies = variables.iter().map(values).collect::<Result<Vec<_>>>()?;
    step(&mut copies.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>())?;
    for (var, copy) in variables.iter().zip(copies) {
        var.set(&Tensor::from_vec(copy, var.shape(), var.device())?)?;
    }
    Ok(())
}

/// The operation on one variable: takes its memory and goes on to the rest.
struct Nested<'a, 'b> {
    taken: RefCell<Vec<&'b mut [f32]>>,
    rest: &'a [Var],
    step: RefCell<Step<'a>>,
}

impl InplaceOp1 for Nested<'_, '_> {
    fn name(&self) -> &'static str {
        "packed-adamw"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(values) = storage else { bail!("expected a variable in f32") };
        let (start, end) = range(layout)?;
        let mut taken: Vec<&mut [f32]> = self.taken.take();
        taken.push(&mut values[start..end]);
        in_place(self.rest, taken, *self.step.borrow_mut())
    }
}

fn part<'a>(values: &'a [f32], layout: &Layout) -> Result<&'a [f32]> {
    let (start, end) = range(layout)?;
    Ok(&values[start..end])
}

/// Where the elements of a layout lie.
fn range(layout: &Layout) -> Result<(usize, usize)> {
    match layout.contiguous_offsets() {
        Some(range) => Ok(range),
        None => bail!("expected a contiguous tensor, found {layout:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The way of other devices, tried on the processor.
    #[test]
    fn both_ways_write_the_same() -> Result<()> {
        let variables = || -> Result<Vec<Var>> {
            [2, 0, 3].iter().map(|&n| Var::from_vec(vec![1.0_f32; n], n, &Device::Cpu)).collect()
        };
        let (one, other) = (variables()?, variables()?);
        let mut step = |slices: &mut [&mut [f32]]| {
            assert_eq!(slices.iter().map(|slice| slice.len()).collect::<Vec<_>>(), [2, 0, 3]);
            slices.iter_mut().enumerate().for_each(|(index, slice)| slice.fill(index as f32));
            Ok(())
        };
        in_place(&one, Vec::new(), &mut step)?;
        through_host(&other, &mut step)?;
        for (index, (one, other)) in one.iter().zip(&other).enumerate() {
            assert_eq!(one.to_vec1::<f32>()?, other.to_vec1::<f32>()?);
            assert!(one.to_vec1::<f32>()?.iter().all(|&value| value == index as f32));
        }
        Ok(())
    }
}
