//! `bench train --vary`: every combination of some settings at one effective batch, each measured in a process of
//! its own, so that none finds memory, caches or kernels as another one left them.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Map, Value};
use trainer::Settings;
use trainer::compare::Variation;

use crate::args::BenchTrain;
use crate::output::{self, Usage, bytes, grouped, note, sentence};
use crate::{settings, studies, table};

/// A combination of settings.
struct Candidate {
    /// Keys and values that it has of its own.
    assignments: Vec<(String, String)>,
    settings: Settings,
}

pub fn run(args: &BenchTrain) -> Result<()> {
    let (base, name) = settings::load(&args.configuration)?;
    let variations = args
        .vary
        .iter()
        .map(|text| Ok(Variation::parse(text, "--vary")?))
        .collect::<Result<Vec<_>>>()?;
    let candidates = candidates(&base, &variations, args.effective_batch)?;
    let folder = tempfile::tempdir().context("no folder for temporary files")?;
    let mut rows = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        let words = candidate.words();
        note(&format!("[{}/{}] {words}", index + 1, candidates.len()));
        let file = folder.path().join(format!("{index}.toml"));
        std::fs::write(&file, candidate.settings.to_toml())?;
        let mut row = match measure(args, &file) {
            Ok(row) => row,
            Err(error) => {
                note(&format!("{words}: {}", sentence(&error)));
                Map::from_iter([("error".to_owned(), Value::String(sentence(&error)))])
            }
        };
        row.insert("name".into(), Value::String(name.clone()));
        let own = candidate.assignments.iter();
        let own = own.map(|(key, value)| (key.clone(), Value::String(value.clone())));
        row.insert("settings".into(), Value::Object(own.collect()));
        rows.push(row);
    }
    if rows.iter().all(|row| row.contains_key("error")) {
        bail!("no candidate could be measured");
    }
    if let Some(file) = &args.output {
        write(file, &name, &rows)?;
        note(&format!("results: {}", file.display()));
    }
    if args.json {
        return output::json(&Value::Array(rows.into_iter().map(Value::Object).collect()));
    }
    show(&rows, &candidates)
}

impl Candidate {
    fn words(&self) -> String {
        let all = self.assignments.iter().map(|(key, value)| format!("{key}={value}"));
        all.collect::<Vec<_>>().join(" ")
    }
}

/// Every combination, with the accumulation that keeps the effective batch.
fn candidates(
    base: &Settings,
    variations: &[Variation],
    effective: Option<usize>,
) -> Result<Vec<Candidate>> {
    let whole = |settings: &Settings, key: &str| -> Result<usize> {
        let text = settings.shown(key);
        text.parse().map_err(|_| anyhow!(Usage(format!("`{key}` is {text}, no whole number"))))
    };
    let effective = match effective {
        Some(effective) => effective,
        None => whole(base, "run.batch")? * whole(base, "run.accumulation")?,
    };
    let mut all: Vec<Vec<(String, String)>> = vec![Vec::new()];
    for Variation { key, values } in variations {
        let with = |before: &Vec<(String, String)>| {
            let extended = |value: &String| [&before[..], &[(key.clone(), value.clone())]].concat();
            values.iter().map(extended).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    let mut candidates = Vec::new();
    for mut assignments in all {
        let mut settings = base.clone();
        for (key, value) in &assignments {
            settings.add_assignment(&format!("{key}={value}"))?;
        }
        let batch = whole(&settings, "run.batch")?;
        if batch == 0 || !effective.is_multiple_of(batch) {
            bail!(Usage(format!(
                "a micro-batch of {batch} sequences does not divide the effective batch of {effective}"
            )));
        }
        let accumulation = (effective / batch).to_string();
        settings.add_assignment(&format!("run.accumulation={accumulation}"))?;
        trainer::config::Config::new(&settings)?;
        assignments.push(("run.accumulation".into(), accumulation));
        candidates.push(Candidate { assignments, settings });
    }
    Ok(candidates)
}

/// Measures the configuration in a file, in a process of its own.
fn measure(args: &BenchTrain, file: &Path) -> Result<Map<String, Value>> {
    let output = Command::new(studies::program()?)
        .args(["bench", "train", "--json", "--config"])
        .arg(file)
        .args(["--warm-up", &args.warm_up.to_string(), "--updates", &args.updates.to_string()])
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
        bail!("{}", line.map_or_else(|| output.status.to_string(), str::to_owned));
    }
    let rows: Value = serde_json::from_slice(&output.stdout)?;
    rows[0].as_object().cloned().context("a measurement that is no row")
}

/// Puts rows into a file, in place of those of the same name that it has.
fn write(file: &Path, name: &str, rows: &[Map<String, Value>]) -> Result<()> {
    let mut all: Vec<Value> = Vec::new();
    if file.exists() {
        let text = trainer::read_text(file).with_context(|| file.display().to_string())?;
        let earlier: Vec<Value> =
            serde_json::from_str(&text).with_context(|| file.display().to_string())?;
        all.extend(earlier.into_iter().filter(|row| row["name"] != name));
    }
    all.extend(rows.iter().cloned().map(Value::Object));
    let text = format!("{:#}\n", Value::Array(all));
    Ok(tape::aside::write_file(file, text.as_bytes())?)
}

fn show(rows: &[Map<String, Value>], candidates: &[Candidate]) -> Result<()> {
    let number = |row: &Map<String, Value>, key: &str| row.get(key).and_then(Value::as_f64);
    let rate = |row: &Map<String, Value>| number(row, "tokens_per_s").unwrap_or(0.0);
    let best = rows.iter().map(rate).fold(0.0, f64::max);
    let cells = |(row, candidate): (&Map<String, Value>, &Candidate)| {
        let text = |key: &str, write: &dyn Fn(f64) -> String| {
            number(row, key).map_or_else(|| "-".to_owned(), write)
        };
        let remark = match row.get("error").and_then(Value::as_str) {
            Some(error) => error.to_owned(),
            None if rate(row) >= best => "fastest".to_owned(),
            None => String::new(),
        };
        let values = candidate.assignments.iter().map(|(_, value)| value.clone());
        let figures = [
            text("ms_per_update", &|ms| format!("{ms:.3}")),
            text("tokens_per_s", &|rate| grouped(rate as u64)),
            text("share_of_peak", &|share| format!("{:.1}%", share * 100.0)),
            text("peak_bytes", &|peak| bytes(peak as u64)),
            remark,
        ];
        values.chain(figures).collect::<Vec<_>>()
    };
    let mut head: Vec<&str> =
        candidates[0].assignments.iter().map(|(key, _)| key.as_str()).collect();
    head.extend(["ms/update", "tokens/s", "of peak", "peak memory", ""]);
    let rows: Vec<_> = rows.iter().zip(candidates).map(cells).collect();
    output::data(&format!("{}\n", table::columns(&head, &rows)))
}
