//! The memory that a run takes on its device: planned before anything is allocated, to be shown and to be held
//! against what is free.

use model::ops::Operations;
use model::{Batch, Layout, Purpose};
use serde::Serialize;

use crate::config::{Config, Reduction};
use crate::device_tree::floats_beside;
use crate::error::Error;
use crate::evaluate::scoring_batch;
use crate::pool::RangeShape;
use crate::setup;
use crate::stage::schedule_length;
use crate::world::Share;

/// Bytes of a token id.
const ID_BYTES: u64 = size_of::<u32>() as u64;

/// Buffers of a pass that are no activations.
const WORKSPACES: [&str; 2] = ["workspace", "tokens.order"];

/// Memory of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// What it holds.
    pub name: String,
    /// How much.
    pub bytes: u64,
}

/// What a run takes, kind by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// All but the tapes.
    pub kinds: Vec<Memory>,
    /// Ranges of tapes that are kept beside that.
    pub tapes: Memory,
    /// What is free, on a device with memory of its own.
    pub free_bytes: Option<u64>,
    /// Sequences in the largest micro-batch that fits there.
    pub largest_batch: Option<u64>,
}

impl Needs {
    /// What a network and its optimizer need on `device`, with rows in ranges of `shape`, for the part of `share`.
    ///
    /// # Errors
    ///
    /// A batch that no address space has room for, and what the device refuses.
    pub fn new<D: Operations>(
        device: &D,
        config: &Config,
        network: model::Config,
        shape: RangeShape,
        share: Share,
    ) -> Result<Self, Error> {
        let batch = setup::batch(config);
        let plan_of = |rows: usize| -> Result<model::Plan, Error> {
            let batch = Batch { rows, ..batch };
            Ok(model::Plan::new(device, network, batch, config.run.purpose)?)
        };
        let plan = plan_of(batch.rows)?;
        let layout = Layout::new(network);
        let format = config.optimizer.format;
        let state = |length: usize| format.state_bytes(length as u64);
        let state: u64 = match setup::shards_of(config, &layout, share) {
            Some(shards) => shards.state_bytes(&layout, format)[share.rank],
            None => layout.slots().iter().map(|slot| state(slot.length)).sum(),
        };
        let is_workspace = |name: &str| WORKSPACES.contains(&name);
        let (workspaces, activations): (Vec<_>, Vec<_>) =
            plan.buffers.iter().partition(|buffer| is_workspace(&buffer.name));
        let sum =
            |buffers: &[&model::PlannedBuffer]| buffers.iter().map(|buffer| buffer.bytes).sum();
        let kind = |name: &str, bytes| Memory { name: name.to_owned(), bytes };
        let mut kinds = vec![
            kind("parameters", plan.parameter_bytes),
            kind("gradients", plan.gradient_bytes),
            kind(&format!("optimizer state in {format}"), state),
            kind("activations", sum(&activations)),
            kind("workspaces", sum(&workspaces)),
        ];
        let copy = device.parameter_copy_bytes(layout.parameters());
        if copy > 0 {
            kinds.insert(1, kind("parameters as bf16", copy));
        }
        if let Some(scoring) = scoring_batch(device, batch, config.run.validation_windows) {
            let plan = model::Plan::new(device, network, scoring, Purpose::Evaluation)?;
            let bytes = plan.buffers.iter().map(|buffer| buffer.bytes).sum();
            kinds.push(kind("validation", bytes));
        }
        if config.run.reduction == Reduction::Fixed && device.adds_in_order() {
            let parts = setup::shards_of(config, &layout, share).map_or_else(
                || share.equal_parts(layout.parameters()),
                |shards| shards.ranges().to_vec(),
            );
            let floats = floats_beside(config.run.accumulation, &parts, share);
            let bytes = floats.iter().sum::<usize>() * size_of::<f32>();
            kinds.push(kind("sums of micro-batches", bytes as u64));
        }
        let all: u64 = kinds.iter().map(|kind| kind.bytes).sum();
        let free_bytes = device.free_bytes()?;
        // Everything but the fixed part grows with the sequences in a micro-batch.
        let one_more = plan_of(batch.rows + 1)?.total_bytes() - plan.total_bytes();
        let largest_batch = free_bytes.map(|free| {
            let rows = batch.rows as i64 + (free as i64 - all as i64) / one_more.max(1) as i64;
            rows.max(0) as u64
        });
        let spare = free_bytes.map_or(0, |free| free.saturating_sub(all) / 2 / ID_BYTES);
        let rows = config.run.batch * config.run.accumulation.div_ceil(share.world_size);
        let schedule = schedule_length(rows, batch.time) as u64;
        let (kept, ranges) = (shape.kept(spare), shape.ranges);
        let share =
            if kept >= ranges { "whole".into() } else { format!("{kept} of {ranges} ranges") };
        let tapes = kind(&format!("tapes, {share}"), (kept * shape.ids + schedule) * ID_BYTES);
        Ok(Self { kinds, tapes, free_bytes, largest_batch })
    }

    /// Bytes of everything.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.bytes).sum::<u64>() + self.tapes.bytes
    }

    /// Whether all of it fits.
    ///
    /// # Errors
    ///
    /// [`Error::DoesNotFit`] that says by how much it does not.
    pub fn must_fit(&self, batch: usize) -> Result<(), Error> {
        let needed_bytes = self.total_bytes();
        match self.free_bytes {
            Some(free_bytes) if free_bytes < needed_bytes => Err(Error::DoesNotFit {
                needed_bytes,
                free_bytes,
                missing_bytes: needed_bytes - free_bytes,
                batch,
                largest_batch: self.largest_batch.unwrap_or(0),
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_says_by_how_much() {
        let kind = |name: &str, bytes| Memory { name: name.into(), bytes };
        let needs = |free_bytes| Needs {
            kinds: vec![kind("parameters", 60), kind("activations", 30)],
            tapes: kind("tapes, whole", 10),
            free_bytes,
            largest_batch: Some(3),
        };
        for enough in [None, Some(100), Some(101)] {
            assert!(needs(enough).must_fit(4).is_ok());
        }
        let error = needs(Some(97)).must_fit(4).unwrap_err();
        let message = "expected 100 bytes of device memory to be free, found 97: 3 too few; run.batch = 4 could be 3";
        assert!(error.to_string().starts_with(message), "{error}");
    }

    #[test]
    fn a_pool_keeps_what_there_is_room_for() {
        let shape = RangeShape { ids: 100, ranges: 7, update_ranges: 3 };
        for (spare, kept) in [(0, 3), (450, 4), (699, 6), (700, 7), (u64::MAX, 7)] {
            assert_eq!(shape.kept(spare), kept);
        }
    }
}
