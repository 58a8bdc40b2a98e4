//! What an optimizer is told when it is made: tensors, groups, options, and their
//! checked form.
//!
//! Everything is checked once, here. Devices take a [`Layout`] and trust it.

use std::collections::HashSet;
use std::sync::Arc;

use formats::{Bias, Block8, Format, Maps, Rules, Section, UState1Q};

use crate::Error;
use crate::cpu::maps::MapTables;
use crate::cpu::norm::CHUNK_ELEMENTS;
use crate::parts::{self, Part};
use crate::scalars::Scalars;

/// A tensor of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The name, distinct among all tensors; checkpoints use it.
    pub name: String,
    /// The number of elements, 0 allowed.
    pub length: usize,
    /// The position of the tensor's group.
    pub group: usize,
    /// What it is a part of; `None` for a whole tensor, at its own position among all.
    pub part: Option<Part>,
}

/// Tensors that are updated alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// The learning rate of updates that are not given another one.
    pub learning_rate: f64,
    /// The shares of the first and of the second moment that survive an update.
    pub betas: [f64; 2],
    /// What is added to the denominator.
    pub eps: f64,
    /// Decoupled decay: the share of a parameter lost per unit of learning rate.
    pub weight_decay: f64,
    /// How the moments persist.
    pub format: Format,
    /// Which exponent bias the tensors get; formats without one ignore it.
    pub bias: BiasChoice,
}

/// How a tensor gets its exponent bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BiasChoice {
    /// This one.
    Fixed(Bias),
    /// [`Bias::for_max_gradient`] of the tensor's first clipped gradient that has a
    /// finite element other than zero, then for good.
    Auto,
}

/// What concerns all tensors together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The global norm at which the gradient is clipped, if it is.
    pub clip_norm: Option<f64>,
    /// What an element that is not finite leads to.
    pub on_nonfinite: OnNonfinite,
    /// Seed of stochastic rounding.
    pub seed: u64,
}

/// What an element whose gradient, or whose new moments or parameter, is not
/// finite leads to. In any case it keeps its parameter and its state, and the
/// report counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnNonfinite {
    /// The finite elements are updated; the caller is expected to stop.
    #[default]
    Stop,
    /// Nothing is updated: a first pass looks for such elements and writes nothing.
    /// It reads parameters, gradients and state once more at every update.
    Skip,
    /// If a gradient is not finite, nothing is updated, then or at any later step, until a state is loaded:
    /// so the parameters stay what they were, whatever was queued behind. If only a result is not finite, the
    /// other elements are updated, and nothing at later steps. Gradients are looked at while the norm is
    /// measured, which an update must then wait for.
    Hold,
}

/// Checked tensors, groups and options, with what follows from them.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) tensors: Vec<TensorSpec>,
    pub(crate) groups: Vec<Group>,
    pub(crate) options: Options,
    /// Elements of all tensors together.
    pub(crate) elements: usize,
    /// What every tensor is a part of: of itself, if it is whole.
    pub(crate) parts: Vec<Part>,
    /// The maps of `block8` tensors by rules, where there are such tensors.
    maps: [Option<Arc<MapTables>>; 2],
    /// What checkpoints say of the maps.
    pub(crate) maps_name: String,
}

impl Default for Group {
    /// The usual AdamW: rate 1e-3, betas 0.9 and 0.999, eps 1e-8, no decay, in `e4`
    /// at the default bias.
    fn default() -> Group {
        Group {
            learning_rate: 1e-3,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.0,
            format: Format::E4,
            bias: BiasChoice::Fixed(Bias::DEFAULT),
        }
    }
}

impl Default for Options {
    /// No clipping, stop at what is not finite, seed 0.
    fn default() -> Options {
        Options { clip_norm: None, on_nonfinite: OnNonfinite::Stop, seed: 0 }
    }
}

impl Group {
    /// Whether the hyperparameters can be used, also after rounding to f32.
    fn check(&self, group: usize) -> Result<(), Error> {
        let [beta1, beta2] = self.betas;
        let is_share = |beta: f64| (0.0..1.0).contains(&beta) && (beta as f32) < 1.0;
        let is_amount = |amount: f64| amount >= 0.0 && (amount as f32).is_finite();
        let checks = [
            ("beta1", beta1, is_share(beta1), "at least 0 and below 1, also as f32"),
            ("beta2", beta2, is_share(beta2), "at least 0 and below 1, also as f32"),
            (
                "eps",
                self.eps,
                self.eps as f32 > 0.0 && (self.eps as f32).is_finite(),
                "finite and above 0, also as f32",
            ),
            ("weight_decay", self.weight_decay, is_amount(self.weight_decay), "finite, at least 0"),
            (
                "learning_rate",
                self.learning_rate,
                is_amount(self.learning_rate),
                "finite, at least 0",
            ),
        ];
        match checks.into_iter().find(|&(_, _, is_good, _)| !is_good) {
            None => match self.format {
                Format::UState1Q(UState1Q { has_first: true, .. }) if beta1 * beta1 >= beta2 => {
                    Err(Error::UnboundedUpdate { group, beta1, beta2 })
                }
                _ => Ok(()),
            },
            Some((name, found, _, expected)) => {
                Err(Error::Hyperparameter { group, name, expected, found })
            }
        }
    }

    /// The bias of a tensor that has seen no gradient: `None` if it will be chosen.
    pub(crate) fn initial_bias(&self) -> Option<Bias> {
        match self.bias {
            BiasChoice::Auto if self.format.has_bias() => None,
            BiasChoice::Auto => Some(Bias::DEFAULT),
            BiasChoice::Fixed(bias) => Some(bias),
        }
    }

    /// Whether update number `update` can be done.
    pub(crate) fn check_update(&self, update: u64) -> Result<(), Error> {
        if update == 0 {
            return Err(Error::UpdateZero);
        }
        self.check_rate(0, update, self.learning_rate)
    }

    /// Whether an update can be done at `learning_rate`.
    fn check_rate(&self, group: usize, update: u64, learning_rate: f64) -> Result<(), Error> {
        Group { learning_rate, ..*self }.check(group)?;
        let scalars = Scalars::at(self, update, learning_rate);
        if scalars.step.is_finite() && scalars.decay.is_finite() {
            Ok(())
        } else {
            let (name, expected) = ("learning_rate", "small enough for f32 after bias correction");
            Err(Error::Hyperparameter { group, name, expected, found: learning_rate })
        }
    }
}

impl Layout {
    pub(crate) fn new(
        tensors: &[TensorSpec],
        groups: &[Group],
        options: Options,
    ) -> Result<Layout, Error> {
        for (position, group) in groups.iter().enumerate() {
            group.check(position)?;
        }
        if let Some(found) = options.clip_norm
            && !(found > 0.0 && found.is_finite())
        {
            return Err(Error::ClipNorm { found });
        }
        if u32::try_from(tensors.len()).is_err() {
            return Err(Error::TooLarge { what: "the number of tensors", limit: "32 bits" });
        }
        let mut names = HashSet::new();
        let mut elements = 0usize;
        for (position, tensor) in tensors.iter().enumerate() {
            let TensorSpec { name, length, group, .. } = tensor;
            if name.is_empty() {
                return Err(Error::NoName { tensor: position });
            }
            if !names.insert(name) {
                return Err(Error::DuplicateName { name: name.clone() });
            }
            if *group >= groups.len() {
                let (tensor, groups) = (name.clone(), groups.len());
                return Err(Error::GroupOutOfRange { tensor, groups, found: *group });
            }
            elements = elements
                .checked_add(*length)
                .ok_or(Error::TooLarge { what: "the number of elements", limit: "a usize" })?;
        }
        let parts = parts::resolve(tensors, groups.len());
        parts::check(tensors, &parts, groups, options)?;
        let maps = [Rules::Repaired, Rules::Published].map(|rules| {
            let has_rules = |group: &Group| matches!(group.format, Format::Block8(Block8 { rules: own, .. }) if own == rules);
            groups.iter().any(has_rules).then(|| Arc::new(MapTables::new(Maps::dynamic(rules))))
        });
        let (tensors, groups) = (tensors.to_vec(), groups.to_vec());
        let maps_name = "dynamic".to_owned();
        Ok(Layout { tensors, groups, options, elements, parts, maps, maps_name })
    }

    /// Replaces the maps of `block8` tensors.
    pub(crate) fn set_maps(&mut self, first: &[f32], second: &[f32]) -> Result<(), Error> {
        for (rules, maps) in [Rules::Repaired, Rules::Published].into_iter().zip(&mut self.maps) {
            let own = Maps::new(first, second, rules)?;
            self.maps_name = format!("{:016x}", own.fingerprint());
            if maps.is_some() {
                *maps = Some(Arc::new(MapTables::new(own)));
            }
        }
        Ok(())
    }

    /// The maps of `block8` tensors with these rules.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub(crate) fn maps_of(&self, rules: Rules) -> &MapTables {
        self.maps[rules as usize].as_deref().expect("a model with block8 tensors has their maps")
    }

    /// The maps of the `block8` tensors, if there are any; a device has one set of rules.
    #[cfg(feature = "cuda")]
    pub(crate) fn any_maps(&self) -> Option<&Maps> {
        self.maps.iter().flatten().next().map(|tables| &*tables.maps)
    }

    /// Whether there are `block8` tensors.
    pub(crate) fn has_maps(&self) -> bool {
        self.maps.iter().any(Option::is_some)
    }

    /// How the moments of a tensor persist: small tensors may differ from their group.
    pub(crate) fn format_of(&self, tensor: usize) -> Format {
        self.group_of(tensor).format.for_length(self.parts[tensor].whole)
    }

    /// The arrays of a tensor's state.
    pub(crate) fn arrays_of(&self, tensor: usize) -> impl Iterator<Item = Section> + Clone {
        self.format_of(tensor).arrays(self.tensors[tensor].length as u64)
    }

    /// Whether tensors may be parts of others.
    pub(crate) fn has_parts(&self) -> bool {
        self.tensors.iter().any(|tensor| tensor.part.is_some())
    }

    /// Whether tensors can be updated without knowing of others' parts.
    pub(crate) fn check_alone(&self) -> Result<(), Error> {
        parts::needs_others(&self.tensors, &self.parts, &self.groups, self.options)
            .map_or(Ok(()), Err)
    }

    /// Whether moments of a tensor can be stored without knowing of others' parts.
    pub(crate) fn check_scale_alone(&self, position: usize) -> Result<(), Error> {
        let (Some(spec), Some(part)) = (self.tensors.get(position), self.parts.get(position))
        else {
            return Ok(());
        };
        parts::needs_scale_of_others(spec, part, self.format_of(position)).map_or(Ok(()), Err)
    }

    /// The chunks of every whole tensor, in order.
    pub(crate) fn whole_chunks(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|part| part.whole.div_ceil(CHUNK_ELEMENTS as u64) as usize)
    }

    /// Whether a bias is chosen from gradients.
    pub(crate) fn chooses_bias(&self) -> bool {
        let chooses = |tensor: &TensorSpec| self.groups[tensor.group].initial_bias().is_none();
        self.tensors.iter().any(chooses)
    }

    /// Tensors in `ustate1q`, whose scales are those of whole tensors.
    pub(crate) fn scaled_tensors(&self) -> impl Iterator<Item = usize> {
        (0..self.tensors.len()).filter(|&tensor| self.format_of(tensor).is_bias_corrected())
    }

    /// Whether an update can be done at these rates, one for each group.
    pub(crate) fn check_update(&self, update: u64, learning_rates: &[f64]) -> Result<(), Error> {
        if update == 0 {
            return Err(Error::UpdateZero);
        }
        let (expected, found) = (self.groups.len(), learning_rates.len());
        if expected != found {
            return Err(Error::LearningRateCount { expected, found });
        }
        let mut groups = self.groups.iter().zip(learning_rates).enumerate();
        groups.try_for_each(|(position, (group, &rate))| group.check_rate(position, update, rate))
    }

    /// Gives a group other hyperparameters.
    pub(crate) fn set_group(&mut self, position: usize, group: Group) -> Result<(), Error> {
        let groups = self.groups.len();
        let Some(own) = self.groups.get_mut(position) else {
            return Err(Error::NoSuchGroup { groups, found: position });
        };
        if own.format != group.format {
            let (expected, found) = (own.format.to_string(), group.format.to_string());
            return Err(Error::FormatChanged { group: position, expected, found });
        }
        group.check(position)?;
        *own = Group { bias: own.bias, ..group };
        Ok(())
    }

    /// The group of a tensor.
    pub(crate) fn group_of(&self, tensor: usize) -> &Group {
        &self.groups[self.tensors[tensor].group]
    }
}
