//! Output head and cross-entropy on CUDA, and the sum of losses.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use gpu_kernels::{
    Activations, Buffer, Head, HeadGradients, HeadInputs, HeadShape, Lane, Logits, Ring,
    UPDATES_AT_ONCE, Weights,
};

use super::{Cuda, front};
use crate::ops::{Loss, LossInputs, LossOutputs, LossShape, Store};
use crate::parts::Part;
use crate::{Error, Purpose};

impl Loss for Cuda {
    type Sums = Sums;
    type Scalar = Buffer<f64>;

    /// Plans the logits of a single row too, which is what generation asks for in its recording.
    fn loss_plan(&self, shape: LossShape, purpose: Purpose) -> Result<(), Error> {
        if shape.rows == 1 {
            self.logits_of(shape)?;
        }
        self.head(shape, purpose).map(drop)
    }

    fn loss_workspace_length(&self, shape: LossShape) -> usize {
        kernel_shape(shape).workspace_length(self.precision())
    }

    fn loss_forward(
        &self,
        losses: &mut Buffer<f32>,
        x: &Activations,
        table: Weights<'_>,
        targets: &Buffer<u32>,
        workspace: &mut Buffer<f32>,
        shape: LossShape,
    ) -> Result<(), Error> {
        self.timed(Part::Loss, || {
            let head = self.head(shape, Purpose::Evaluation)?;
            let table_start = table.product_addresses().start;
            self.settle(&[losses.address(), workspace.address(), table_start])?;
            let inputs = HeadInputs { x, table, targets };
            head.losses(self.inner.lanes.both(), losses, inputs, workspace, None)?;
            Ok(())
        })
    }

    fn loss_forward_backward(
        &self,
        outputs: LossOutputs<'_, Self>,
        inputs: LossInputs<'_, Self>,
        workspace: &mut Buffer<f32>,
        shape: LossShape,
        store: Store,
    ) -> Result<(), Error> {
        self.timed(Part::Loss, || {
            let head = self.head(shape, Purpose::Training)?;
            let LossOutputs { losses, d_x, d_table } = outputs;
            let LossInputs { x, table, targets, scale } = inputs;
            let table_start = table.product_addresses().start;
            self.settle(&[losses.address(), d_x.address(), workspace.address(), table_start])?;
            let touched = [d_table.address(), workspace.address(), x.address()].map(front);
            let gradients = HeadGradients { d_x, d_table, scale, adds: store == Store::Add };
            let inputs = HeadInputs { x, table, targets };
            let lanes = &self.inner.lanes;
            let table = head.losses(lanes.both(), losses, inputs, workspace, Some(gradients))?;
            if head.has_several_runs() {
                lanes.note(&touched)?;
            }
            self.postpone_table(head, table.expect("there are gradients"));
            Ok(())
        })
    }

    fn logits(
        &self,
        out: &mut Buffer<f32>,
        x: &Activations,
        table: Weights<'_>,
        rows: Range<usize>,
        shape: LossShape,
    ) -> Result<(), Error> {
        let logits = self.logits_of(LossShape { rows: rows.len(), ..shape })?;
        self.settle(&[out.address(), table.product_addresses().start])?;
        Ok(logits.queue(self.lane(), out, x, table, rows.start)?)
    }

    fn sum(&self, losses: &Buffer<f32>, length: usize) -> Result<f64, Error> {
        let mut sum = self.gpu().zeros::<f64>(1)?;
        self.inner.tree_sum.queue(self.gpu(), &mut sum, losses, length, false)?;
        let mut host = [0.0];
        sum.download(&mut host)?;
        Ok(host[0])
    }

    fn sums(&self) -> Result<Sums, Error> {
        let totals: Buffer<f64> = self.gpu().zeros(UPDATES_AT_ONCE)?;
        Ok(Sums {
            total: totals.shared(0..1),
            totals,
            selected: 0,
            each: self.gpu().zeros(0)?,
            ring: Ring::new(self.gpu(), UPDATES_AT_ONCE)?,
            counts: VecDeque::new(),
        })
    }

    fn total(
        &self,
        sums: &mut Sums,
        losses: &Buffer<f32>,
        length: usize,
        store: Store,
    ) -> Result<(), Error> {
        let (adds, total) = (store == Store::Add, &mut sums.total);
        let touched = [losses.address(), total.address()].map(front);
        let add_up =
            |lane: &Lane| self.inner.tree_sum.queue(lane.gpu(), total, losses, length, adds);
        Ok(self.inner.lanes.aside(&touched, add_up)?)
    }

    fn set_total(&self, sums: &mut Sums, nats: f64) -> Result<(), Error> {
        Ok(sums.total.upload(&[nats])?)
    }

    fn scalar<'a>(&self, sums: &'a Sums) -> &'a Buffer<f64> {
        &sums.total
    }

    fn select_total(&self, sums: &mut Sums, position: usize) {
        if sums.selected != position {
            sums.total = sums.totals.shared(position..position + 1);
            sums.selected = position;
        }
    }

    fn queue_totals(&self, sums: &mut Sums) -> Result<(), Error> {
        sums.ring.queue(&sums.totals)?;
        sums.counts.push_back(sums.selected + 1);
        Ok(())
    }

    fn take_totals(&self, sums: &mut Sums, waits: bool) -> Result<Option<Vec<f64>>, Error> {
        let Some(&count) = sums.counts.front() else { return Ok(None) };
        let taken = sums.ring.take(waits, |totals| totals[..count].to_vec())?;
        if taken.is_some() {
            sums.counts.pop_front();
        }
        Ok(taken)
    }
}

/// The totals of the losses of some updates on the device, and those that nobody took yet.
pub struct Sums {
    /// The selected one.
    pub(super) total: Buffer<f64>,
    totals: Buffer<f64>,
    selected: usize,
    /// Those of micro-batches, where they are kept one by one.
    pub(super) each: Buffer<f64>,
    ring: Ring<f64>,
    /// How many of each copy under way count.
    counts: VecDeque<usize>,
}

impl Cuda {
    /// A head that can do what the purpose asks for.
    fn head(&self, shape: LossShape, purpose: Purpose) -> Result<Arc<Head>, Error> {
        let shape = kernel_shape(shape);
        let is_training = purpose == Purpose::Training;
        let is_enough = |head: &Head| head.is_training() || !is_training;
        let make = || Head::new(self.lane(), &self.inner.products, shape, is_training);
        self.inner.heads.get(shape, is_enough, make)
    }

    fn logits_of(&self, shape: LossShape) -> Result<Arc<Logits>, Error> {
        let shape = kernel_shape(shape);
        let make = || Logits::new(self.lane(), &self.inner.products, shape);
        self.inner.logits.get(shape, |_| true, make)
    }
}

fn kernel_shape(shape: LossShape) -> HeadShape {
    let LossShape { rows, channels, vocabulary } = shape;
    HeadShape { rows, channels, vocabulary }
}
