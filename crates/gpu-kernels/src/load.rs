//! Which kernels serve the update of a model: such as nobody has to wait for, where there are any.
//!
//! How one program is had, from the cache, from what was built before or from the compiler, is in
//! [`module`](crate::module).

use std::iter;

use crate::argument::Argument;
use crate::compile::Program;
use crate::kind::{BlockOptions, Kind, Kinds};
use crate::layout::Layout;
use crate::module::Kernel;
use crate::programs::{self, Pass};
use crate::shape::{Shape, TableIn};
use crate::{Error, Gpu};

/// The kernels of passes over a model, and their argument: those that nobody has to compile, if there are such
/// with the table where it shall lie. Where they have to be compiled, so are the programs `beside` them,
/// which are needed next.
pub(crate) fn kernels(
    gpu: &Gpu,
    layout: &Layout,
    options: BlockOptions,
    shape: Shape,
    passes: &[Pass],
    beside: &[Program],
) -> Result<(Vec<Kernel>, Argument), Error> {
    let kinds = layout.kinds.iter().fold(Kinds::default(), |kinds, &kind| kinds.with(kind));
    let choices = |pass: Pass, kinds, argument: &Argument| {
        programs::adamw(pass, kinds, options, shape.threads, argument.tensors())
    };
    let are_at_hand = |&(kinds, table): &(Kinds, TableIn), passes: &[Pass]| {
        let argument = Argument::new(layout, table);
        passes.iter().all(|&pass| gpu.is_at_hand(&choices(pass, kinds, &argument)[0]))
    };
    let wanted = (kinds, shape.table);
    let table = if passes.len() == 1 { shape.table } else { TableIn::Memory };
    let candidates = || iter::once(wanted).chain(carried(kinds, table));
    // The first pass takes longest to compile.
    let at_hand = candidates()
        .find(|form| are_at_hand(form, passes))
        .or_else(|| candidates().find(|form| are_at_hand(form, &passes[..1])));
    if at_hand.is_none() {
        let argument = Argument::new(layout, shape.table);
        let firsts = passes.iter().map(|&pass| choices(pass, kinds, &argument).swap_remove(0));
        gpu.compile_ahead(&firsts.chain(beside.iter().cloned()).collect::<Vec<_>>());
    }
    // A release has kernels of each kind alone and of more together, for a table in memory.
    let released = [(kinds, TableIn::Memory), (kinds.released(), TableIn::Memory)];
    let tries = iter::once(at_hand.unwrap_or(wanted)).chain(released);
    let mut missing = None;
    for (kinds, table) in tries {
        let argument = Argument::new(layout, table);
        let kernel =
            |&pass| gpu.best_module(&choices(pass, kinds, &argument))?.kernel(pass.kernel());
        match passes.iter().map(kernel).collect::<Result<Vec<Kernel>, Error>>() {
            Ok(kernels) => return Ok((kernels, argument)),
            Err(error @ Error::KernelsMissing { .. }) => missing = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(missing.expect("every try but a missing kernel returns"))
}

/// The kernels of PyTorch's package that have all of `kinds`: with the table as wanted, or in memory, as those of
/// several passes are.
fn carried(kinds: Kinds, table: TableIn) -> Option<(Kinds, TableIn)> {
    let mut sets = Kind::FORMATS.into_iter().flat_map(Kinds::carried);
    let (set, is_for_any_number) = sets.find(|(set, _)| set.contains(kinds))?;
    Some((set, if is_for_any_number { table } else { TableIn::Memory }))
}
