//! What a model with formats of blocks has besides: maps, fresh states that are not zero, and the
//! record of the update that wrote them.

use bytemuck::Zeroable;
use formats::Maps;
use formats::published_random::{MULTIPLIERS, Place};

use crate::adamw::FusedAdamW;
use crate::buffer::Buffer;
use crate::layout::Layout;
use crate::table::UStateRecord;
use crate::{Error, Gpu, maps};

/// The position of the scales among the arrays of `ustate1q`.
pub(crate) const SCALES: usize = 2;
/// The words of a record that are the array of its scales.
const SCALE_WORDS: usize = 3;

/// What the first moments of a tensor in `ustate1q` were written with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WrittenUnits {
    /// `1 - beta1^t`
    pub correction: f32,
    /// `1 / sqrt(1 - beta2^t)`
    pub rms_scale: f32,
    /// The largest normalised update.
    pub normalised_max: f32,
}

/// The tables of the maps of `block8`, on the device; empty without.
pub(crate) fn upload_maps(gpu: &Gpu, maps: Option<&Maps>) -> Result<(Buffer<u32>, bool), Error> {
    let (words, is_fine) = maps.map(maps::tables).unwrap_or_default();
    Ok((gpu.upload(&words)?, is_fine))
}

/// The state of a model, fresh.
pub(crate) fn fresh_state(gpu: &Gpu, layout: &Layout) -> Result<Buffer<u32>, Error> {
    let mut state: Buffer<u32> = gpu.zeros(layout.state_words)?;
    for (tensor, kind) in layout.kinds.iter().enumerate() {
        let length = layout.tensors[tensor].length;
        for (number, section) in kind.format.arrays(length).enumerate() {
            if section.fresh.iter().all(|&byte| byte == 0) {
                continue;
            }
            let range = layout.section(tensor, number);
            let mut bytes = section.fresh.iter().copied().cycle();
            let mut next = || bytes.next().expect("a cycle has no end");
            let words = range.clone().map(|_| u32::from_le_bytes([next(), next(), next(), next()]));
            state.view_mut().part(range).upload(&words.collect::<Vec<u32>>())?;
        }
    }
    for tensor in bias_corrected(layout) {
        let record = UStateRecord { rms_scale: 1.0, ..UStateRecord::zeroed() };
        write_record(&mut state, layout, tensor, record)?;
    }
    Ok(state)
}

/// The tensors whose first moments are read in the units of the update that wrote them.
pub(crate) fn bias_corrected(layout: &Layout) -> Vec<usize> {
    let kinds = layout.kinds.iter().enumerate();
    kinds.filter(|(_, kind)| kind.format.is_bias_corrected()).map(|(tensor, _)| tensor).collect()
}

/// Overwrites a record, but for the scales.
fn write_record(
    state: &mut Buffer<u32>,
    layout: &Layout,
    tensor: usize,
    record: UStateRecord,
) -> Result<(), Error> {
    let end = layout.section(tensor, SCALES).end;
    let words: &[u32] = bytemuck::cast_slice(std::slice::from_ref(&record));
    let rest = &words[SCALE_WORDS..];
    state.view_mut().part(end..end + rest.len()).upload(rest)
}

impl FusedAdamW {
    /// The update that wrote the state of the first tensor for which that matters; `None` without
    /// such a tensor.
    ///
    /// # Errors
    ///
    /// What the driver refuses, and what went wrong in the work before.
    pub fn written(&self) -> Result<Option<u64>, Error> {
        let Some(&tensor) = bias_corrected(self.layout()).first() else { return Ok(None) };
        let start = self.layout().section(tensor, SCALES).start;
        let words = self.state_buffer().view().part(start..start + size_of::<UStateRecord>() / 4);
        let words = words.to_vec()?;
        let record: UStateRecord = bytemuck::pod_read_unaligned(bytemuck::cast_slice(&words));
        Ok(Some(record.written))
    }

    /// Says which update wrote the state, and for a tensor what it wrote with.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn set_written(
        &mut self,
        written: u64,
        units: impl Fn(usize) -> WrittenUnits,
    ) -> Result<(), Error> {
        for tensor in bias_corrected(self.layout()) {
            let WrittenUnits { correction, rms_scale, normalised_max } = units(tensor);
            let units = UStateRecord { correction, rms_scale, ..UStateRecord::zeroed() };
            let record = UStateRecord { written, normalised_max, ..units };
            let (state, layout) = self.state_and_layout();
            write_record(state, layout, tensor, record)?;
        }
        Ok(())
    }
}

/// What group and place of a tensor add to the keys of published random numbers.
#[must_use]
pub fn published_key(place: Place) -> u32 {
    let [_, by_group, by_parameter, _] = MULTIPLIERS;
    place.group.wrapping_add(1).wrapping_mul(by_group)
        ^ place.parameter.wrapping_add(1).wrapping_mul(by_parameter)
}
