//! What shadows of a run found, as tables and as a picture.

use std::path::{Path, PathBuf};

use super::Block;
use crate::error::Error;
use crate::plot::{self, Axis, Figure, Line, Numbers, Panel, Style, padded, quantity, thin};
use crate::record::RunRecord;
use crate::shadow::{ALL, ShadowRow, ShadowSummary, summaries};

const CAPTION: &str = "Above, the logarithm of how far the step of each shadow is from that of f32 moments, over all \
tensors; below, how far its RMS drifts from theirs.";

/// The blocks about every run that had shadows, and the files of their pictures.
///
/// # Errors
///
/// What the file system refuses.
pub fn blocks(runs: &[RunRecord], folder: &Path) -> Result<(Vec<Block>, Vec<PathBuf>), Error> {
    let (mut blocks, mut files) = (Vec::new(), Vec::new());
    for run in runs.iter().filter(|run| !run.shadow.is_empty()) {
        let name = format!("shadows-{}", run.name());
        let file = folder.join(format!("{name}.svg"));
        let svg = plot::write(&figure(run), &file)?;
        files.extend([folder.join(format!("{name}.png")), file]);
        let found = summaries(&run.shadow);
        blocks.push(Block::Heading(format!("Shadows of {}", run.name())));
        blocks.push(all_tensors(&found));
        blocks.push(Block::Text(
            "Means over the later half of the run. Step: |d' - d| / |d| and the cosine between the step of the \
             shadow and that of f32 moments. Moments: |m' - m| / |m| and |r' - r| / |r|; drift: the mean of \
             ln(r' / r). Subnormal and saturated: shares of elements below the smallest normal number and at the \
             largest, for formats of which each element stands alone. Stalled: shares that the gradient left as \
             they were, of those that it changed in f32."
                .into(),
        ));
        blocks.push(Block::Picture { name, caption: CAPTION.into(), svg });
        blocks.push(by_role(&found, "error of the step", |row| row.direction_error));
        blocks.push(by_role(&found, "stalled r", |row| row.stalled_r));
    }
    Ok((blocks, files))
}

fn all_tensors(found: &[ShadowSummary]) -> Block {
    let head = [
        "shadow",
        "error of the step",
        "cosine",
        "error of m",
        "error of r",
        "drift of r",
        "subnormal m",
        "subnormal r",
        "saturated m",
        "saturated r",
        "stalled m",
        "stalled r",
    ];
    let rows = found.iter().filter(|summary| summary.role == ALL).map(|summary| {
        let means = &summary.means;
        let share = |share: Option<f64>| share.map_or_else(|| "-".into(), percent);
        vec![
            summary.format.clone(),
            format!("{:.3e}", means.direction_error),
            format!("{:.6}", means.direction_cosine),
            format!("{:.3e}", means.m_error),
            format!("{:.3e}", means.r_error),
            format!("{:+.2e}", means.r_drift),
            share(means.subnormal_m),
            share(means.subnormal_r),
            share(means.saturated_m),
            share(means.saturated_r),
            percent(means.stalled_m),
            percent(means.stalled_r),
        ]
    });
    Block::table(&head, rows.collect())
}

fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// A row for every shadow, a column for every role.
fn by_role(found: &[ShadowSummary], what: &str, field: fn(&ShadowRow) -> f64) -> Block {
    let roles = distinct(found.iter().map(|summary| &summary.role));
    let formats = distinct(found.iter().map(|summary| &summary.format));
    let mut head = vec![what.to_owned()];
    head.extend(roles.iter().map(|&role| role.clone()));
    let cell = |format: &String, role: &String| {
        let mine = found.iter().find(|s| s.format == *format && s.role == *role);
        mine.map_or_else(|| "-".to_owned(), |summary| format!("{:.2e}", field(&summary.means)))
    };
    let row = |format: &&String| {
        let cells = roles.iter().map(|role| cell(format, role));
        std::iter::once((*format).clone()).chain(cells).collect()
    };
    Block::Table { head, rows: formats.iter().map(row).collect() }
}

/// Each name once, in the order in which they come.
fn distinct<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut distinct: Vec<&String> = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

fn figure(run: &RunRecord) -> Figure {
    let mut legend: Vec<(String, Style)> = Vec::new();
    let (mut errors, mut drifts) = (Vec::new(), Vec::new());
    for row in run.shadow.iter().filter(|row| row.role == ALL) {
        if !legend.iter().any(|(name, _)| *name == row.format) {
            let style = Style::numbered(legend.len());
            legend.push((row.format.clone(), style));
            let of = |y: fn(&ShadowRow) -> f64| {
                let mine = run.shadow.iter().filter(|r| r.role == ALL && r.format == row.format);
                let points: Vec<_> = mine.map(|row| (row.update as f64, y(row))).collect();
                Line { points: thin(&points, 700), style, marked: false }
            };
            // A shadow without an error has no logarithm.
            errors.push(of(|row| row.direction_error.max(1e-9).log10()));
            drifts.push(of(|row| row.r_drift));
        }
    }
    let last = run.shadow.iter().map(|row| row.update).max().unwrap_or(1) as f64;
    let panel = |label: &str, lines: Vec<Line>| {
        let heights = lines.iter().flat_map(|line| &line.points).map(|&(_, y)| y);
        Panel {
            x: Axis { label: "updates".into(), range: 0.0..last, numbers: Numbers::Quantity },
            y: Axis { label: label.to_owned(), range: padded(heights), numbers: Numbers::Decimal },
            lines,
            share: 1,
        }
    };
    Figure {
        title: format!("Shadows of {}, up to update {}", run.name(), quantity(last)),
        legend,
        panels: vec![panel("log10, error of the step", errors), panel("drift of r", drifts)],
        size_pixels: (1080, 800),
    }
}
