//! How far stored moments are from given ones: of the first moments, of the roots of the second, and of the
//! step that both would make.

use std::collections::BTreeMap;

use model::{Role, Slot};
use optimizer::DecodedMoments;
use serde::Serialize;

use crate::config::Config;

/// Norms of differences over norms, over some tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distance {
    /// Elements.
    pub elements: u64,
    /// `|m' - m| / |m|`
    pub first: f64,
    /// `|r' - r| / |r|`, r the root of v.
    pub rms: f64,
    /// `|u' - u| / |u|`, u the direction `m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)` of a step.
    pub direction: f64,
}

/// Sums of squares, from which distances follow.
#[derive(Clone, Copy, Debug, Default)]
struct Squares {
    elements: u64,
    /// Of m, r and u; of their differences.
    given: [f64; 3],
    differences: [f64; 3],
}

/// The squares of every tensor.
pub(super) struct Distances {
    corrections: [f64; 2],
    eps: f64,
    tensors: Vec<(String, Role, Squares)>,
}

impl Distances {
    /// Of moments that update `update` left.
    pub(super) fn new(config: &Config, update: u64) -> Distances {
        let power = update.max(1) as f64;
        let corrections = config.optimizer.betas.map(|beta| 1.0 - beta.powf(power));
        Distances { corrections, eps: config.optimizer.eps, tensors: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Of one more tensor.
    pub(super) fn add(&mut self, slot: &Slot, given: &DecodedMoments, stored: &DecodedMoments) {
        let numbers = |moments: &DecodedMoments, index: usize| {
            let (m, r) = (f64::from(moments.m[index]), f64::from(moments.v[index]).sqrt());
            let [first, second] = self.corrections;
            [m, r, m / first / (r / second.sqrt() + self.eps)]
        };
        let mut squares = Squares { elements: given.m.len() as u64, ..Squares::default() };
        for index in 0..given.m.len() {
            let (wanted, found) = (numbers(given, index), numbers(stored, index));
            for k in 0..3 {
                squares.given[k] += wanted[k] * wanted[k];
                squares.differences[k] += (found[k] - wanted[k]) * (found[k] - wanted[k]);
            }
        }
        self.tensors.push((slot.name.clone(), slot.role, squares));
    }

    pub(super) fn all(&self) -> Distance {
        let squares = self.tensors.iter().map(|(_, _, squares)| *squares);
        squares.fold(Squares::default(), Squares::plus).distance()
    }

    pub(super) fn roles(&self) -> Vec<(String, Distance)> {
        let mut roles: BTreeMap<usize, (String, Squares)> = BTreeMap::new();
        for (_, role, squares) in &self.tensors {
            let own = roles.entry(order_of(*role)).or_insert((name_of(*role), Squares::default()));
            own.1 = own.1.plus(*squares);
        }
        roles.into_values().map(|(name, squares)| (name, squares.distance())).collect()
    }

    pub(super) fn into_tensors(self) -> Vec<(String, Distance)> {
        self.tensors.into_iter().map(|(name, _, squares)| (name, squares.distance())).collect()
    }
}

impl Squares {
    fn plus(self, other: Squares) -> Squares {
        let sum = |a: [f64; 3], b: [f64; 3]| [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
        Squares {
            elements: self.elements + other.elements,
            given: sum(self.given, other.given),
            differences: sum(self.differences, other.differences),
        }
    }

    fn distance(self) -> Distance {
        let relative = |k: usize| {
            if self.given[k] > 0.0 { (self.differences[k] / self.given[k]).sqrt() } else { 0.0 }
        };
        let [first, rms, direction] = [relative(0), relative(1), relative(2)];
        Distance { elements: self.elements, first, rms, direction }
    }
}

fn order_of(role: Role) -> usize {
    match role {
        Role::TokenTable => 0,
        Role::Positions => 1,
        Role::Weight => 2,
        Role::ResidualWeight => 3,
        Role::Bias => 4,
        Role::Gain => 5,
    }
}

fn name_of(role: Role) -> String {
    const NAMES: [&str; 6] =
        ["token table", "positions", "weights", "residual weights", "biases", "gains"];
    NAMES[order_of(role)].to_owned()
}
