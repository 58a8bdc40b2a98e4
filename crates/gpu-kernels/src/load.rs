//! Which kernels serve the update of a model: such as nobody has to wait for, where there are any.
//!
//! How one program is had, from the cache, from what was built before or from the compiler, is in
//! [`module`](crate::module).

use crate::argument::Argument;
use crate::compile::Program;
use crate::kind::{BlockOptions, Kinds};
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
    // Kernels that were built before are for each kind alone, or for more together: in PyTorch's package for formats
    // of blocks, in a release for a table in memory.
    let more = kinds.released();
    let carried = if kinds.has_blocks() { more } else { kinds };
    let choices = |pass: Pass, kinds, argument: &Argument| {
        programs::adamw(pass, kinds, options, shape.threads, argument.tensors())
    };
    let is_at_hand = |kinds: &Kinds| {
        let argument = Argument::new(layout, shape.table);
        passes.iter().all(|&pass| gpu.is_at_hand(&choices(pass, *kinds, &argument)[0]))
    };
    let at_hand = [kinds, carried].into_iter().find(is_at_hand);
    if at_hand.is_none() {
        let argument = Argument::new(layout, shape.table);
        let firsts = passes.iter().map(|&pass| choices(pass, kinds, &argument).swap_remove(0));
        gpu.compile_ahead(&firsts.chain(beside.iter().cloned()).collect::<Vec<_>>());
    }
    let wanted = at_hand.unwrap_or(kinds);
    let tries = [(wanted, shape.table), (kinds, TableIn::Memory), (more, TableIn::Memory)];
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
