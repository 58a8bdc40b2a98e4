//! `train`: a run from its settings to its results.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use serde_json::json;
use trainer::{Ending, Plan, Request, Settings, Summary, World};

use crate::Done;
use crate::args::Train;
use crate::output::{self, bytes, duration, grouped, note};
use crate::progress::Training;
use crate::{ranks, settings, signals, table};

/// Where runs go that name no folder.
const RUNS: &str = "runs";

pub fn run(args: &Train) -> Result<Done> {
    if args.stop_with_parent {
        trainer::study::stop_with_parent();
    }
    // Until all ranks are there, a signal ends the process at once: there is nothing to write yet.
    let world = ranks::join()?;
    let stop = signals::stop_flag()?;
    ranks::together(&world, || train(args, &world, &stop))
}

fn train(args: &Train, world: &World, stop: &AtomicBool) -> Result<Done> {
    let (mut settings, name) = settings::load(&args.configuration)?;
    // Rank 0 knows which folders are taken, and what is in them.
    let folder = folder(args, &settings, &name).to_string_lossy().into_owned();
    let folder = PathBuf::from(world.text_of_first(folder)?);
    if args.resume {
        let file = folder.join("config.toml");
        // What is there and no file is said to be so when it is read.
        let is_there = world.is_first() && file.symlink_metadata().is_ok();
        let text = if is_there { settings::read_own(&file)? } else { String::new() };
        let text = world.text_of_first(text)?;
        if !text.is_empty() {
            settings = settings::reload(&args.configuration, &text, &file)?;
        }
    }
    add_tapes(&mut settings, args)?;
    if let Some(shadow) = &args.shadow {
        settings.set_texts("run.shadow", &trainer::compare::split(shadow), "--shadow")?;
    }
    if args.dry_run {
        if world.is_first() {
            let _busy = world.busy();
            show_plan(&trainer::plan_with(&settings, world)?, args.json)?;
        }
        world.leave()?;
        return Ok(Done::Finished);
    }
    let request =
        Request { settings: &settings, folder: folder.clone(), resume: args.resume, stop };
    let ending = trainer::run_with(&request, world, &mut Training::default())?;
    match ending {
        Ending::Finished(_) if !world.is_first() => Ok(Done::Finished),
        Ending::Stopped { .. } if !world.is_first() => Ok(Done::Stopped),
        Ending::Finished(summary) => {
            show_summary(&summary, &folder, args.json)?;
            Ok(Done::Finished)
        }
        Ending::Stopped { update } => {
            note(&format!(
                "stopped after update {}; go on with: {} train --resume --output-dir {}",
                grouped(update),
                output::program(),
                folder.display()
            ));
            Ok(Done::Stopped)
        }
    }
}

/// The run folder: the flag, the setting, or a numbered one after the configuration's name.
fn folder(args: &Train, settings: &Settings, name: &str) -> PathBuf {
    let setting = settings.text("run.output_dir").map(PathBuf::from);
    args.output_dir.clone().or(setting).unwrap_or_else(|| {
        let taken = trainer::last_taken(Path::new(RUNS), name).filter(|_| args.resume);
        taken.unwrap_or_else(|| trainer::first_free(Path::new(RUNS), name))
    })
}

/// Tapes named by flags of their own.
fn add_tapes(settings: &mut Settings, args: &Train) -> Result<()> {
    let flags = [
        ("data.train_tokens", "--train-tokens", &args.train_tokens),
        ("data.train_byte_lengths", "--train-byte-lengths", &args.train_byte_lengths),
        ("data.validation_tokens", "--validation-tokens", &args.validation_tokens),
        (
            "data.validation_byte_lengths",
            "--validation-byte-lengths",
            &args.validation_byte_lengths,
        ),
    ];
    for (key, flag, path) in flags {
        if let Some(path) = path {
            settings.set_text(key, &path.to_string_lossy(), flag)?;
            settings.set_text("data.source", "tapes", flag)?;
        }
    }
    Ok(())
}

fn show_plan(plan: &Plan, as_json: bool) -> Result<()> {
    if as_json {
        return output::json(&serde_json::to_value(plan)?);
    }
    let rows: Vec<Vec<String>> =
        plan.bytes.iter().map(|part| vec![part.name.clone(), bytes(part.bytes)]).collect();
    let fits = |(free, batch): (u64, u64)| {
        format!(
            "{} free, room for micro-batches of up to {} sequences",
            bytes(free),
            grouped(batch)
        )
    };
    let lines = [
        ("device", format!("{} in {}", plan.device, plan.precision)),
        (
            "device memory",
            plan.free_bytes.zip(plan.largest_batch).map_or_else(|| "that of the host".into(), fits),
        ),
        ("parameters", grouped(plan.parameters)),
        (
            "state format",
            format!(
                "{}, {:.2} bytes a parameter",
                plan.state_format, plan.state_bytes_per_parameter
            ),
        ),
        ("optimizer state", rank_bytes(&plan.rank_state_bytes)),
        ("updates", format!("{} of {} tokens", grouped(plan.updates), grouped(plan.update_tokens))),
        (
            "tokens",
            format!("{} of {} on the tape", grouped(plan.tokens), grouped(plan.tape_tokens)),
        ),
        ("updates the tape allows", grouped(plan.updates_allowed)),
        ("model FLOPs an update", format!("{:.2} GFLOP", plan.flops_per_update / 1e9)),
        ("matrix products here", format!("{:.0} GFLOP/s measured", plan.ceiling_gflops)),
        (
            "estimated time",
            format!(
                "{} at {:.0}% of that, validations apart",
                duration(plan.estimated_s),
                plan.assumed_share * 100.0
            ),
        ),
    ];
    note(&table::pairs(&lines));
    note(&format!("\n{}\n", table::columns(&["memory", "bytes"], &rows)));
    note("dry run: nothing was written");
    Ok(())
}

/// Bytes of optimizer state, of each rank.
pub fn rank_bytes(ranks: &[u64]) -> String {
    let (least, most) = (ranks.iter().min().copied(), ranks.iter().max().copied());
    let (least, most) = (bytes(least.unwrap_or(0)), bytes(most.unwrap_or(0)));
    match ranks.len() {
        0 | 1 => most,
        count if least == most => format!("{most} on each of {count} ranks"),
        count => format!("{least} to {most} on each of {count} ranks"),
    }
}

fn show_summary(summary: &Summary, folder: &Path, as_json: bool) -> Result<()> {
    if as_json {
        output::json(&json!(summary))?;
    } else if let Some(sample) = &summary.sample {
        match sample.trim_end() {
            "" => note("\nA sample was empty: the model ended the text where it began"),
            text => {
                note("\nA sample:\n");
                output::data(&format!("{text}\n"))?;
            }
        }
    }
    note(&format!("\n{}\n", table::pairs(&results(summary))));
    let line =
        |what: &str, path: &str| note(&format!("  {what:<12}{}", folder.join(path).display()));
    line("curves", "curves.png");
    line("checkpoint", "checkpoints");
    line("summary", "summary.json");
    note(&format!("\nnext: {} generate --checkpoint {}", output::program(), folder.display()));
    Ok(())
}

pub fn results(summary: &Summary) -> Vec<(&'static str, String)> {
    let bpb =
        |bpb: Option<f64>| bpb.map_or_else(String::new, |bpb| format!(", {bpb:.4} bits/byte"));
    let first = summary.first_validation.map_or_else(
        || "none".to_owned(),
        |first| format!("{:.4} nats/token{}", first.loss_nats, bpb(first.bpb)),
    );
    let last = format!(
        "{:.4} nats/token{}, perplexity {:.2}",
        summary.validation_loss_nats,
        bpb(summary.validation_bpb),
        summary.validation_perplexity
    );
    let counts = [summary.nonfinite, summary.saturated_m, summary.saturated_r].map(grouped);
    vec![
        ("parameters", grouped(summary.parameters)),
        ("updates", format!("{}, {} tokens", grouped(summary.updates), grouped(summary.tokens))),
        ("first validation", first),
        ("last validation", last),
        ("training loss", format!("{:.4} nats/token", summary.train_loss_nats)),
        (
            "optimizer state",
            format!(
                "{}, {:.2} bytes a parameter",
                summary.state_format, summary.state_bytes_per_parameter
            ),
        ),
        (
            "events",
            format!("{} non-finite, {} m and {} r saturated", counts[0], counts[1], counts[2]),
        ),
        (
            "speed",
            format!(
                "{} tokens/s on {}, {}",
                grouped(summary.tokens_per_s as u64),
                summary.device,
                output::threads(summary.threads)
            ),
        ),
        ("time", duration(summary.wall_s)),
        ("peak memory", summary.peak_bytes.map_or_else(|| "unknown".to_owned(), bytes)),
    ]
}
