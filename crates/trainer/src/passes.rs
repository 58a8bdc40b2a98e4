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
    gather(gpt, stage, position, is_last)?;
    Ok(gpt.forward_backward(parameters, gradients, adds)?)
}

/// Brings the batch at `position` among those that this rank takes of an update; the last one moves on to the next update.
///
/// # Errors
///
/// What the device refuses.
pub fn gather<D: Operations>(
    gpt: &mut Gpt<D>,
    stage: &mut Stage<D>,
    position: usize,
    is_last: bool,
) -> Result<(), Error> {
    let rows = [position * gpt.batch().rows, stage.update_rows()];
    let (ids, schedule) = stage.parts();
    Ok(gpt.gather(ids, schedule, rows, is_last)?)
}

/// An update of `count` micro-batches, of `[parameters, gradients]`, whose first batch is there. If it is not the last of its
/// recording, the next one's batch is brought beside it, and what that reads late is updated beside that.
///
/// # Errors
///
/// What the device and the optimizer refuse.
pub fn update<D: Operations, O: Updater<D>>(
    gpt: &mut Gpt<D>,
    optimizer: &mut O,
    [parameters, gradients]: [&mut D::Floats; 2],
    stage: &mut Stage<D>,
    (count, is_last): (usize, bool),
) -> Result<(), Error> {
    accumulate(gpt, parameters, gradients, stage, count)?;
    gpt.begin_forward_backward(parameters, gradients, count > 1)?;
    if !is_last {
        gather(gpt, stage, 0, count == 1)?;
    }
    gpt.finish_pass()?;
    if is_last {
        return Ok(optimizer.step_watching(parameters, gradients, gpt.total())?);
    }
    let late = gpt.late_slots()?;
    let updates = optimizer.step_but(parameters, gradients, gpt.total(), &late)?;
    gpt.update_beside_chains(updates);
    Ok(())
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

/// The gradients and the loss of all of `count` micro-batches but the last, together, whose batch is there then; that of the
/// first is there before.
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
) -> Result<(), Error> {
    for next in 1..count {
        gpt.forward_backward(parameters, gradients, next > 1)?;
        gather(gpt, stage, next, next + 1 == count)?;
    }
    Ok(())
}
