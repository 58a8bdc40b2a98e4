//! Learning curves of several runs over each other.

use crate::curves::{Losses, POINTS};
use crate::plot::{Axis, Figure, Line, Numbers, Panel, Style, padded, running_mean};
use crate::plot::{thin, thin_envelope};
use crate::record::RunRecord;

/// What the picture shows.
pub const CAPTION: &str = "Above: loss against training tokens. Below: loss against training time. Each update is \
thin and pale, its running mean strong; points are validations. The steep fall at the start lies above the frame.";

const SIZE_PIXELS: (u32, u32) = (1080, 1000);

/// The share of a run at its start whose fall is not shown.
const STEEP: f64 = 0.03;

/// Runs from which on their single updates are left out, since nobody could tell them apart.
const CROWD: usize = 9;

/// The curves of the runs that have any; none without one.
#[must_use]
pub fn learning_curves(runs: &[RunRecord], labels: &[String]) -> Option<Figure> {
    let bytes = runs.iter().all(|run| Losses::have_bytes(&run.events));
    let mut names: Vec<&String> = Vec::new();
    let mut figure = Curves { crowded: runs.len() >= CROWD, ..Curves::default() };
    for (run, label) in runs.iter().zip(labels) {
        let losses = Losses::in_unit(&run.events, bytes);
        if losses.training.is_empty() {
            continue;
        }
        let position = names.iter().position(|name| *name == label).unwrap_or_else(|| {
            names.push(label);
            names.len() - 1
        });
        figure.add(&losses, Style::numbered(position));
    }
    let unit = if bytes { "bits per byte" } else { "loss, nats per token" };
    (!names.is_empty()).then(|| figure.finish(&names, unit))
}

#[derive(Default)]
struct Curves {
    crowded: bool,
    by_tokens: Vec<Line>,
    by_time: Vec<Line>,
    /// Heights that must be seen.
    heights: Vec<f64>,
    last_token: f64,
    last_second: f64,
}

impl Curves {
    fn add(&mut self, losses: &Losses, style: Style) {
        let over = |x: fn(&crate::events::Update) -> f64| -> Vec<(f64, f64)> {
            losses.training.iter().map(|(update, loss)| (x(update), *loss)).collect()
        };
        let (tokens, time) = (over(|update| update.tokens as f64), over(|update| update.elapsed_s));
        let found = &losses.validation;
        let found_tokens: Vec<_> =
            found.iter().map(|(found, loss)| (found.tokens as f64, *loss)).collect();
        let found_time: Vec<_> =
            found.iter().map(|(found, loss)| (found.elapsed_s, *loss)).collect();
        let smooth = running_mean(&tokens);
        let shown = &smooth[(smooth.len() as f64 * STEEP) as usize..];
        let raw = &tokens[tokens.len() / 2..];
        self.heights.extend(shown.iter().chain(raw).map(|&(_, y)| y));
        self.heights.extend(found.iter().skip(1).map(|&(_, loss)| loss));
        let last = |points: &[(f64, f64)]| points.last().map_or(0.0, |&(x, _)| x);
        self.last_token = self.last_token.max(last(&tokens)).max(last(&found_tokens));
        self.last_second = self.last_second.max(last(&time)).max(last(&found_time));
        for (lines, points, found) in
            [(&mut self.by_tokens, tokens, found_tokens), (&mut self.by_time, time, found_time)]
        {
            if !self.crowded {
                let points = thin_envelope(&points, POINTS);
                lines.push(Line { points, style: style.pale(), marked: false });
            }
            let points = thin(&running_mean(&points), POINTS);
            lines.push(Line { points, style, marked: false });
            let invisible = Style { width: 0, dash: None, ..style };
            lines.push(Line { points: found, style: invisible, marked: true });
        }
    }

    fn finish(self, names: &[&String], unit: &str) -> Figure {
        let range = padded(self.heights.iter().copied());
        let panel = |label: &str, last: f64, numbers, lines| Panel {
            x: Axis { label: label.to_owned(), range: 0.0..last.max(1e-3), numbers },
            y: Axis { label: unit.to_owned(), range: range.clone(), numbers: Numbers::Decimal },
            lines,
            share: 1,
        };
        let legend = names.iter().enumerate();
        Figure {
            title: "Learning curves".into(),
            legend: legend.map(|(index, &name)| (name.clone(), Style::numbered(index))).collect(),
            panels: vec![
                panel("training tokens", self.last_token, Numbers::Quantity, self.by_tokens),
                panel("training time", self.last_second, Numbers::Seconds, self.by_time),
            ],
            size_pixels: SIZE_PIXELS,
        }
    }
}
