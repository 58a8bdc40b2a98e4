//! A comparison as a table, a picture and a report.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::Comparison;
use super::matching::{is_perturbed, shown};
use crate::error::Error;
use crate::plot::{self, IntervalFigure, IntervalRow};
use crate::record::RunRecord;
use crate::report::{Block, Report};

/// The head of the table of variants.
pub const HEAD: [&str; 10] = [
    "variant",
    "mean loss",
    "difference",
    "percent",
    "noise, percent",
    "state B/param",
    "ms/update",
    "saturated m, r",
    "stalled m, r",
    "verdict",
];

impl Comparison {
    /// A row for every variant, under [`HEAD`].
    #[must_use]
    pub fn rows(&self) -> Vec<Vec<String>> {
        let optional = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let mut rows = Vec::new();
        for variant in &self.variants {
            let with_half = |mean: String, half: Option<f64>, digits: usize| {
                half.map_or(mean.clone(), |half| format!("{mean} ± {half:.digits$}"))
            };
            let tuned = variant.tuned.as_ref().map(|value| format!(" ({value})"));
            rows.push(vec![
                format!("{}{}", variant.value, tuned.unwrap_or_default()),
                format!("{:.5}", variant.loss_mean),
                optional(variant.difference.map(|difference| {
                    with_half(format!("{:+.5}", difference.mean), difference.half_width, 5)
                })),
                optional(variant.percent.map(|percent| {
                    with_half(format!("{:+.3}", percent.mean), percent.half_width, 3)
                })),
                optional(variant.noise_percent.map(|noise| format!("{noise:.3}"))),
                format!("{:.2}", variant.state_bytes_per_parameter),
                optional(variant.ms_per_update.map(|ms| format!("{ms:.3}"))),
                format!("{}, {}", variant.saturated_m, variant.saturated_r),
                optional(
                    variant.stalled.map(|[m, r]| format!("{:.1}%, {:.1}%", m * 100.0, r * 100.0)),
                ),
                variant.verdict_words.clone(),
            ]);
        }
        rows
    }

    /// The differences of every pair, and those that noise made: a row for each seed.
    #[must_use]
    pub fn pair_table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let compared = || self.variants.iter().skip(1);
        let mut head = vec!["seed".to_owned(), format!("{}, loss", self.baseline)];
        head.extend(compared().map(|variant| format!("{}, percent", variant.value)));
        head.extend(self.noise.as_ref().map(|_| "noise, percent".to_owned()));
        let cell = |pairs: &[super::SeedDifference], seed: u64| {
            let pair = pairs.iter().find(|pair| pair.seed == seed);
            pair.map_or_else(|| "-".to_owned(), |pair| format!("{:+.3}", pair.percent))
        };
        let row = |(&seed, loss): (&u64, &f64)| {
            let mut cells = vec![seed.to_string(), format!("{loss:.5}")];
            cells.extend(compared().map(|variant| cell(&variant.pairs, seed)));
            cells.extend(self.noise.iter().map(|noise| cell(&noise.differences, seed)));
            cells
        };
        let rows = self.variants.first().map(|baseline| baseline.losses.iter().map(row).collect());
        (head, rows.unwrap_or_default())
    }

    /// What a reader must know to read the tables.
    #[must_use]
    pub fn remarks(&self) -> String {
        let mut text = format!(
            "Losses are those of the final validation over the whole tape, in {}. Differences are from {} at the \
             same seed; intervals hold the true mean with a confidence of {:.0}% (Student's t over seeds).",
            self.unit,
            self.baseline,
            self.confidence * 100.0
        );
        match &self.noise {
            Some(noise) => text.push_str(&format!(
                " Noise: initial weights changed by {} move the end by {:.3}% (root mean square); a mean of as many \
                 pairs would stay within the percent named beside each variant.",
                noise.perturbation, noise.rms_percent
            )),
            None => text.push_str(" No run showed what noise alone does."),
        }
        if let Some(tuned) = &self.tuned {
            text.push_str(&format!(
                " Each variant has its own best {}, found with one seed; a step beside the best changes {} by {:.3}%.",
                tuned.key, self.baseline, tuned.step_percent
            ));
            if !tuned.at_an_end.is_empty() {
                text.push_str(&format!(
                    " The best is the first or last that was tried for {}, so a better one may lie beyond.",
                    tuned.at_an_end.join(", ")
                ));
            }
        }
        text
    }
}

/// The picture of the differences: a row for each variant that is compared with the baseline.
#[must_use]
pub fn picture(comparison: &Comparison) -> IntervalFigure {
    let rows = comparison.variants.iter().filter_map(|variant| {
        let percent = variant.percent?;
        Some(IntervalRow {
            label: variant.value.clone(),
            mean: percent.mean,
            half_width: percent.half_width,
            values: variant.pairs.iter().map(|pair| pair.percent).collect(),
        })
    });
    let noise = comparison.variants.iter().filter_map(|variant| variant.noise_percent);
    let confidence = comparison.confidence * 100.0;
    IntervalFigure {
        title: format!("{} against {}", comparison.varied, comparison.baseline),
        label: format!("difference of the loss in {}, percent", comparison.unit),
        rows: rows.collect(),
        noise: noise.reduce(f64::max),
        legend: [
            format!("mean with interval of {confidence:.0}%"),
            "single pairs".into(),
            "noise of the mean".into(),
        ],
    }
}

/// Writes the report on a comparison and its runs into `folder`; the paths of the files.
///
/// # Errors
///
/// What the file system refuses.
pub fn report(
    comparison: &Comparison,
    runs: &[RunRecord],
    command: &str,
    csv: bool,
    folder: &Path,
) -> Result<Vec<PathBuf>, Error> {
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let file = folder.join("differences.svg");
    let svg = plot::write(&picture(comparison), &file)?;
    let title = format!("{}: {} and others", comparison.varied, comparison.baseline);
    let mut report = Report::new(&title, runs, command);
    let (head, rows) = comparison.pair_table();
    report.findings = vec![
        Block::Heading("What was found".into()),
        Block::table(&HEAD, comparison.rows()),
        Block::Text(comparison.remarks()),
        Block::Picture {
            name: "differences".into(),
            caption: format!("Differences from {}; more is worse.", comparison.baseline),
            svg,
        },
        Block::Heading("Pair by pair".into()),
        Block::Table { head, rows },
    ];
    let label = |run: &RunRecord| {
        let value = shown(run, &comparison.varied);
        if is_perturbed(run) { format!("{value}, perturbed") } else { value }
    };
    report.labels = runs.iter().map(label).collect();
    report.comparison = json!(comparison);
    report.csv = csv;
    let mut files = vec![file.with_extension("png"), file];
    files.extend(report.write(folder)?);
    Ok(files)
}
