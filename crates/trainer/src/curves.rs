//! Learning curves of one run, as SVG and as PNG.
//!
//! The upper panel shows the loss against training tokens: every update thin and pale, their running mean
//! over it, validations as points joined by a line. The unit is bits per source byte where byte lengths are
//! known, else nats per token. The lower panel shows the learning rate.

use crate::error::Error;
use crate::events::{Event, Update, Validation};
use crate::folder::RunFolder;
use crate::plot::{self, Axis, Figure, Line, Numbers, PALETTE, Panel, Style, padded};
use crate::plot::{running_mean, thin, thin_envelope};

const SIZE_PIXELS: (u32, u32) = (1080, 720);

/// Stretches or points of a line, about as many as a picture has pixels to show.
pub const POINTS: usize = 700;

/// The losses of a run, in the unit that it has.
#[derive(Debug, Default)]
pub struct Losses {
    /// What a loss is in.
    pub unit: &'static str,
    /// Every update that was not dropped, with its loss.
    pub training: Vec<(Update, f64)>,
    /// Every validation, with its loss.
    pub validation: Vec<(Validation, f64)>,
}

impl Losses {
    /// In bits per byte, where every event of a loss has it, else in nats per token.
    #[must_use]
    pub fn new(events: &[Event]) -> Self {
        Self::in_unit(events, Self::have_bytes(events))
    }

    /// Whether every event of a loss is in bits per byte too.
    #[must_use]
    pub fn have_bytes(events: &[Event]) -> bool {
        events.iter().all(|event| match event {
            Event::Update(update) => update.skipped || update.bpb.is_some(),
            Event::Validation(validation) => validation.bpb.is_some(),
            _ => true,
        })
    }

    /// In bits per byte, where `bytes` says so, else in nats per token.
    #[must_use]
    pub fn in_unit(events: &[Event], bytes: bool) -> Self {
        let unit = if bytes { "bits per byte" } else { "loss, nats per token" };
        let mut losses = Self { unit, ..Self::default() };
        for event in events {
            match event {
                Event::Update(update) if !update.skipped => {
                    let loss = update.bpb.filter(|_| bytes).unwrap_or(update.loss_nats);
                    losses.training.push((update.clone(), loss));
                }
                Event::Validation(validation) => {
                    let loss = validation.bpb.filter(|_| bytes).unwrap_or(validation.loss_nats);
                    losses.validation.push((validation.clone(), loss));
                }
                _ => {}
            }
        }
        losses
    }
}

/// Draws `curves.svg` and `curves.png` of a run folder. A run without a single update has no curves.
///
/// # Errors
///
/// A file that cannot be written.
pub fn draw(folder: &RunFolder, events: &[Event], title: &str) -> Result<(), Error> {
    let losses = Losses::new(events);
    if losses.training.is_empty() {
        return Ok(());
    }
    plot::write(&figure(&losses, title), &folder.curves("svg")).map(drop)
}

fn figure(losses: &Losses, title: &str) -> Figure {
    let training: Vec<(f64, f64)> =
        losses.training.iter().map(|(update, loss)| (update.tokens as f64, *loss)).collect();
    let validation: Vec<(f64, f64)> =
        losses.validation.iter().map(|(found, loss)| (found.tokens as f64, *loss)).collect();
    let rates: Vec<(f64, f64)> = losses
        .training
        .iter()
        .map(|(update, _)| (update.tokens as f64, update.learning_rate))
        .collect();
    let last = training.iter().chain(&validation).map(|&(x, _)| x).fold(1.0, f64::max);
    let peak = rates.iter().map(|&(_, rate)| rate).fold(0.0, f64::max);
    let heights = training.iter().chain(&validation).map(|&(_, y)| y);
    let tokens =
        |label: &str| Axis { label: label.into(), range: 0.0..last, numbers: Numbers::Quantity };
    let blue = Style::numbered(0);
    let vermilion = Style { color: PALETTE[1], ..blue };
    let line = |points, style, marked| Line { points, style, marked };
    let loss = Panel {
        x: tokens(""),
        y: Axis { label: losses.unit.into(), range: padded(heights), numbers: Numbers::Decimal },
        lines: vec![
            line(thin_envelope(&training, POINTS), blue.pale(), false),
            line(thin(&running_mean(&training), POINTS), blue, false),
            line(validation, vermilion, true),
        ],
        share: 7,
    };
    let rate = Panel {
        x: tokens("training tokens"),
        y: Axis {
            label: "learning rate".into(),
            range: 0.0..peak * 1.1,
            numbers: Numbers::Exponent,
        },
        lines: vec![line(thin(&rates, POINTS), blue, false)],
        share: 3,
    };
    let legend = vec![
        ("training, each update".into(), blue.pale()),
        ("training, running mean".into(), blue),
        ("validation".into(), vermilion),
    ];
    Figure { title: title.into(), legend, panels: vec![loss, rate], size_pixels: SIZE_PIXELS }
}
