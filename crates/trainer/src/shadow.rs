//! Shadows: the gradients of one run, given to other state formats at the same time.
//!
//! Two runs part by chaos, so the loss at their ends says little about what a format gets wrong. A shadow does not
//! train: it is an optimizer of its own that is fed the gradients of the run, beside one whose moments are f32. The
//! step that each would take is compared with that of the f32 one, and so are the moments, tensor role by tensor
//! role: which precision a tensor needs, without chaos in between.
//!
//! Shadows are fed every `run.shadow_every` updates, on the processor; the gradients of a GPU are copied for that.
//! All shadows and the f32 one see the same gradients, so the comparison is fair for any such interval; the moments
//! are then averages over every so many updates. Shadows are kept in no checkpoint: where a run goes on, they begin
//! anew, and `fed` counts from there.
//!
//! `shadow.jsonl` in the run folder has a [`ShadowRow`] for every shadow and role each `run.shadow_measure_every`
//! gradients.

mod measure;
mod summary;

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use formats::{Bias, Format};
use model::{Layout, Role, Slot};
use optimizer::{
    AdamW as _, BiasChoice, CpuAdamW, DecodedMoments, Group, OnNonfinite, Options, TensorSpec,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::Error;
use crate::setup;

use measure::Sums;
pub use summary::{ShadowSummary, read, summaries};

/// The name of the role that stands for all tensors together.
pub const ALL: &str = "all";

/// A format that shadows a run.
#[derive(Clone, Debug, PartialEq)]
pub struct ShadowFormat {
    /// As it was given, such as `e4@18`.
    pub name: String,
    /// The format.
    pub format: Format,
    /// Its bias; that of the run where none was given.
    pub bias: Option<BiasChoice>,
}

impl ShadowFormat {
    /// Reads `FORMAT` or `FORMAT@BIAS`, with a bias from 0 to 40 or `auto`.
    ///
    /// # Errors
    ///
    /// In words: what was expected.
    pub fn parse(name: &str) -> Result<Self, String> {
        let (format, bias) = match name.split_once('@') {
            Some((format, bias)) => (format, Some(bias)),
            None => (name, None),
        };
        let format: Format = format.parse().map_err(|error: formats::Error| error.to_string())?;
        let bias = match bias {
            Some(_) if !format.has_bias() => {
                return Err(format!("{} without @: it has no bias", format.name()));
            }
            Some("auto") => Some(BiasChoice::Auto),
            Some(number) => {
                let bias = number.parse().ok().and_then(|number: u32| Bias::new(number).ok());
                let expected = "a bias from 0 to 40 or auto after @";
                Some(BiasChoice::Fixed(bias.ok_or_else(|| expected.to_owned())?))
            }
            None => None,
        };
        Ok(Self { name: name.to_owned(), format, bias })
    }
}

/// What was found of a shadow in the tensors of a role. What a format does not have is `null` in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShadowRow {
    /// The update.
    pub update: u64,
    /// Gradients that the shadow was fed.
    pub fed: u64,
    /// The shadow.
    pub format: String,
    /// The role of the tensors; [`ALL`] for all together.
    pub role: String,
    /// Their elements.
    pub elements: u64,
    /// `|d' - d| / |d|` of the step `d'` that the shadow would take and that `d` of f32 moments.
    pub direction_error: f64,
    /// The cosine of the angle between both steps.
    pub direction_cosine: f64,
    /// `|m' - m| / |m|` of the first moments.
    pub m_error: f64,
    /// `|r' - r| / |r|` of the RMS.
    pub r_error: f64,
    /// Mean of `ln(r' / r)` where both are more than 0: whether the RMS drifts.
    pub r_drift: f64,
    /// Share of first moments below the smallest normal number, of those that are not 0 in f32.
    pub subnormal_m: Option<f64>,
    /// Share of RMS below the smallest normal number, of those that are not 0 in f32.
    pub subnormal_r: Option<f64>,
    /// Share of first moments at the largest number.
    pub saturated_m: Option<f64>,
    /// Share of RMS at the largest number.
    pub saturated_r: Option<f64>,
    /// Share of first moments that the gradient left as they were, of those that it changed in f32.
    pub stalled_m: f64,
    /// Share of RMS that the gradient left as they were, of those that it changed in f32.
    pub stalled_r: f64,
}

/// The shadows of a run.
pub struct Shadows {
    file: File,
    path: PathBuf,
    every: u64,
    measure_every: u64,
    fed: u64,
    slots: Vec<Slot>,
    reference: CpuAdamW,
    shadows: Vec<(ShadowFormat, CpuAdamW)>,
    /// The step of the f32 moments, and that of a shadow.
    steps: [Vec<f32>; 2],
}

impl std::fmt::Debug for Shadows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.shadows.iter().map(|(shadow, _)| &shadow.name);
        f.debug_list().entries(names).finish()
    }
}

impl Shadows {
    /// The shadows that `config` asks for, over the tensors of `layout`; none if it asks for none. What was found
    /// is appended to the file at `path`, after dropping rows of updates beyond `update`.
    ///
    /// # Errors
    ///
    /// A file that cannot be written, and hyperparameters that make no sense.
    pub fn open(
        config: &Config,
        layout: &Layout,
        path: &Path,
        update: u64,
    ) -> Result<Option<Self>, Error> {
        let wanted = &config.run.shadow;
        if wanted.formats.is_empty() {
            return Ok(None);
        }
        let make = |format: Format, bias: BiasChoice| {
            let (tensors, groups) = setup::tensors_and_groups(config, layout);
            optimizer(&tensors, &groups, config, format, bias)
        };
        let own = config.optimizer.bias;
        let shadow = |shadow: &ShadowFormat| {
            Ok::<_, Error>((shadow.clone(), make(shadow.format, shadow.bias.unwrap_or(own))?))
        };
        summary::drop_after(path, update)?;
        let file = OpenOptions::new().create(true).append(true).open(path);
        let zeros = || vec![0.0; layout.parameters()];
        Ok(Some(Self {
            file: file.map_err(Error::io("open", path))?,
            path: path.to_owned(),
            every: wanted.every,
            measure_every: wanted.measure_every,
            fed: 0,
            slots: layout.slots().to_vec(),
            reference: make(Format::Fp32, own)?,
            shadows: wanted.formats.iter().map(shadow).collect::<Result<_, _>>()?,
            steps: [zeros(), zeros()],
        }))
    }

    /// Whether the gradients of an update are wanted.
    #[must_use]
    pub fn wants(&self, update: u64) -> bool {
        update.is_multiple_of(self.every)
    }

    /// Takes the gradients of an update, and measures where that is due.
    ///
    /// # Errors
    ///
    /// A file that cannot be written.
    pub fn feed(&mut self, update: u64, gradients: &Vec<f32>) -> Result<(), Error> {
        self.fed += 1;
        let fed = self.fed;
        let measures = fed.is_multiple_of(self.measure_every);
        let Self { slots, reference, shadows, steps: [step, shadow_step], .. } = self;
        let before = if measures { moments(reference, slots)? } else { Vec::new() };
        step_into(reference, fed, step, gradients)?;
        let after = if measures { moments(reference, slots)? } else { Vec::new() };
        let mut rows = Vec::new();
        for (shadow, optimizer) in shadows {
            let shadow_before = if measures { moments(optimizer, slots)? } else { Vec::new() };
            step_into(optimizer, fed, shadow_step, gradients)?;
            if !measures {
                continue;
            }
            let shadow_after = moments(optimizer, slots)?;
            let of_tensor = |(position, slot): (usize, &Slot)| {
                let seen = measure::Seen {
                    step: &step[slot.range()],
                    shadow_step: &shadow_step[slot.range()],
                    before: &before[position],
                    after: &after[position],
                    shadow_before: &shadow_before[position],
                    shadow_after: &shadow_after[position],
                };
                Sums::of(&seen, shadow.format, optimizer.bias(position).unwrap_or_default())
            };
            let sums: Vec<Sums> = slots.par_iter().enumerate().map(of_tensor).collect();
            let mut by_role: Vec<(&'static str, Sums)> = Vec::new();
            // One tensor after the other, whatever thread was first.
            for (slot, sums) in slots.iter().zip(&sums) {
                for name in [ALL, role(slot)] {
                    match by_role.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, known)) => known.add(sums),
                        None => by_role.push((name, sums.clone())),
                    }
                }
            }
            let row = |(name, sums): &(&'static str, Sums)| sums.row(update, fed, shadow, name);
            rows.extend(by_role.iter().map(row));
        }
        for row in rows {
            let mut line = serde_json::to_string(&row).expect("a row is plain data");
            line.push('\n');
            self.file.write_all(line.as_bytes()).map_err(Error::io("write", &self.path))?;
        }
        Ok(())
    }
}

/// An optimizer of a format that takes whole steps: rate 1, and no decay, which is the same for all.
fn optimizer(
    tensors: &[TensorSpec],
    groups: &[Group],
    config: &Config,
    format: Format,
    bias: BiasChoice,
) -> Result<CpuAdamW, Error> {
    let whole =
        |group: &Group| Group { learning_rate: 1.0, weight_decay: 0.0, format, bias, ..*group };
    let groups: Vec<Group> = groups.iter().map(whole).collect();
    let options = Options {
        clip_norm: config.optimizer.clip_norm,
        on_nonfinite: OnNonfinite::Skip,
        seed: config.run.seed,
    };
    Ok(CpuAdamW::new(tensors, &groups, options)?)
}

/// The step of an optimizer from parameters of 0, where it is not rounded to their size.
fn step_into(
    optimizer: &mut CpuAdamW,
    number: u64,
    step: &mut Vec<f32>,
    gradients: &Vec<f32>,
) -> Result<(), Error> {
    step.fill(0.0);
    optimizer.set_update(number, &[1.0; 2])?;
    Ok(optimizer.step(step, gradients)?)
}

fn moments(optimizer: &CpuAdamW, slots: &[Slot]) -> Result<Vec<DecodedMoments>, Error> {
    (0..slots.len()).into_par_iter().map(|position| Ok(optimizer.moments(position)?)).collect()
}

/// What a tensor does, in words.
fn role(slot: &Slot) -> &'static str {
    let is_attention = slot.name.contains("attn");
    match slot.role {
        Role::TokenTable => "token table",
        Role::Positions => "positions",
        Role::Weight if is_attention => "attention",
        Role::Weight => "mlp",
        Role::ResidualWeight if is_attention => "attention output",
        Role::ResidualWeight => "mlp output",
        Role::Bias => "bias",
        Role::Gain => "gain",
    }
}
