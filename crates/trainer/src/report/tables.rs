//! The tables of a report: results, settings that differ, environment, commands, and what is missing.

use super::{Block, Report};
use crate::record::RunRecord;
use crate::settings::KEYS;

/// Everything of a report that is no picture.
pub fn blocks(report: &Report<'_>) -> Vec<Block> {
    let runs = report.runs;
    let mut blocks = vec![Block::Heading("Results".into()), results(report)];
    let unfinished: Vec<String> =
        runs.iter().filter(|run| run.summary.is_none()).map(RunRecord::name).collect();
    if !unfinished.is_empty() {
        blocks.push(Block::Text(format!("Not finished: {}.", unfinished.join(", "))));
    }
    let cut: Vec<String> = runs.iter().filter(|run| run.was_cut).map(RunRecord::name).collect();
    if !cut.is_empty() {
        let names = cut.join(", ");
        let text = "The last line of metrics.jsonl was cut in the middle and is left out";
        blocks.push(Block::Text(format!("{text}: {names}.")));
    }
    let keys = differing_keys(runs);
    if !keys.is_empty() {
        blocks.push(Block::Heading("Settings that differ".into()));
        let head: Vec<String> = ["run"].iter().chain(&keys).map(|&name| name.to_owned()).collect();
        let row = |run: &RunRecord| {
            let values = keys.iter().map(|key| run.settings.shown(key));
            std::iter::once(run.name()).chain(values).collect()
        };
        blocks.push(Block::Table { head, rows: runs.iter().map(row).collect() });
    }
    blocks.push(Block::Heading("Environment".into()));
    blocks.push(environment(runs));
    blocks.push(Block::Heading("To make it again".into()));
    let train = |run: &RunRecord| {
        let folder = run.folder.display();
        format!("packed-adamw train --config {folder}/config.toml --output-dir {folder}-again")
    };
    let commands = runs.iter().map(train).chain([report.command.clone()]);
    blocks.push(Block::Commands(commands.collect()));
    blocks
}

/// The keys in whose values the runs are not all alike, folders apart.
#[must_use]
pub fn differing_keys(runs: &[RunRecord]) -> Vec<&'static str> {
    let Some((first, others)) = runs.split_first() else { return Vec::new() };
    let differs = |key: &&str| {
        let differs = |run: &RunRecord| !first.settings.has_same(&run.settings, key);
        *key != "run.output_dir" && others.iter().any(differs)
    };
    KEYS.iter().map(|key| key.name).filter(differs).collect()
}

fn results(report: &Report<'_>) -> Block {
    let head = [
        "run",
        "what",
        "updates",
        "tokens",
        "nats/token",
        "perplexity",
        "bits/byte",
        "best",
        "ms/update",
        "tokens/s",
        "state B/param",
        "saturated m",
        "saturated r",
        "non-finite",
        "time, s",
    ];
    let row = |(run, label): (&RunRecord, &String)| {
        let mut cells = vec![run.name(), label.clone()];
        let Some(found) = &run.summary else {
            cells.resize(head.len(), "-".into());
            return cells;
        };
        let optional = |value: Option<f64>| value.map_or_else(|| "-".into(), |x| format!("{x:.4}"));
        let best = found.best_validation.map(|best| best.bpb.unwrap_or(best.loss_nats));
        cells.extend([
            found.updates.to_string(),
            found.tokens.to_string(),
            format!("{:.4}", found.validation_loss_nats),
            format!("{:.2}", found.validation_perplexity),
            optional(found.validation_bpb),
            optional(best),
            run.ms_per_update().map_or_else(|| "-".into(), |ms| format!("{ms:.3}")),
            format!("{:.0}", found.tokens_per_s),
            format!("{:.2}", found.state_bytes_per_parameter),
            found.saturated_m.to_string(),
            found.saturated_r.to_string(),
            found.nonfinite.to_string(),
            format!("{:.1}", found.wall_s),
        ]);
        cells
    };
    Block::table(&head, report.runs.iter().zip(&report.labels).map(row).collect())
}

/// Machines and versions, the same ones together.
fn environment(runs: &[RunRecord]) -> Block {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for run in runs {
        let Some(found) = &run.summary else { continue };
        let bytes = found.peak_bytes.map_or_else(|| "-".into(), |b| (b >> 20).to_string());
        let cells = [
            found.version.clone(),
            found.device.clone(),
            found.precision.clone(),
            found.threads.to_string(),
            found.parameters.to_string(),
        ];
        match rows.iter_mut().find(|row| row[1..6] == cells) {
            Some(row) => {
                row[0] = format!("{}, {}", row[0], run.name());
                let most = row[6].parse::<u64>().ok().max(bytes.parse().ok());
                row[6] = most.map_or(bytes, |most| most.to_string());
            }
            None => rows.push([&[run.name()], &cells[..], &[bytes]].concat()),
        }
    }
    let head =
        ["runs", "version", "device", "precision", "threads", "parameters", "host memory, MiB"];
    Block::table(&head, rows)
}
