//! The passes of an update, one micro-batch after the other, and the step behind them.

use model::Gpt;
use model::ops::Operations;

use crate::error::Error;
use crate::stage::Stage;
use crate::updater::{Divided, Updater};

/// The pass of the micro-batch at `position` among those of this rank.
///
/// # Errors
///
/// What the device refuses.
pub fn pass<D: Operations>(
    gpt: &mut Gpt<D>,
    stage: &mut Stage<D>,
    parameters: &D::Floats,
    gradients: &mut D::Floats,
    (position, is_last, adds): (usize, bool, bool),
) -> Result<(), Error> {
    let rows = [position * gpt.batch().rows, stage.update_rows()];
    let (ids, schedule) = stage.parts();
    gpt.gather(ids, schedule, rows, is_last)?;
    Ok(gpt.forward_backward(parameters, gradients, adds)?)
}

/// One step of `[parameters, gradients]`; of a part of them, which then comes to all ranks, where those divide the state.
///
/// # Errors
///
/// What the device and the optimizer refuse, and ranks that are gone.
pub fn apply<D: Operations, O: Updater<D>>(
    device: &D,
    optimizer: &mut O,
    [parameters, gradients]: [&mut D::Floats; 2],
    total: &D::Scalar,
    divided: Option<&mut Divided<D>>,
) -> Result<(), Error> {
    let Some(divided) = divided else {
        return Ok(optimizer.step_watching(parameters, gradients, total)?);
    };
    let add = |_: &mut [f64]| unreachable!("devices add up");
    divided.step(device, optimizer, [parameters, gradients], total, add)?;
    device.share_parts(parameters, &divided.owners())?;
    Ok(device.finish_exchange()?)
}

/// The gradients and the loss of `count` micro-batches together, and together with those of other ranks where devices add
/// up.
///
/// # Errors
///
/// What the device refuses.
pub fn accumulate<D: Operations>(
    gpt: &mut Gpt<D>,
    parameters: &D::Floats,
    gradients: &mut D::Floats,
    stage: &mut Stage<D>,
    count: usize,
    is_shared: bool,
) -> Result<(), Error> {
    let (rows, update_rows) = (gpt.batch().rows, stage.update_rows());
    for position in 0..count {
        let (ids, schedule) = stage.parts();
        let (is_last, adds) = (position + 1 == count, position > 0);
        gpt.gather(ids, schedule, [position * rows, update_rows], is_last)?;
        if is_last && is_shared {
            gpt.forward_backward_shared(parameters, gradients, adds)?;
        } else {
            gpt.forward_backward(parameters, gradients, adds)?;
            gpt.total_loss(adds)?;
        }
    }
    Ok(())
}
