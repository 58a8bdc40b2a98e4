//! `bench optimizer | train`: speed, beside what the machine can do at best.

use anyhow::{Result, bail};
use formats::Format;
use optimizer::bench::{Plan, Row, Size, Variant};
use serde_json::{Value, json};
use trainer::{Speed, in_pool};

use crate::args::{BenchOptimizer, BenchTrain};
use crate::devices::{self, Name};
use crate::output::{self, Usage, bytes, grouped, note};
use crate::{bench_matrix, ranks, settings, table};

/// Shapes of models that `--sizes` knows by name: V, T, C, L, H.
const MODELS: [(&str, [usize; 5]); 2] =
    [("reference-12m", [12_096, 1_152, 320, 6, 5]), ("gpt2-124m", [50_304, 1_024, 768, 12, 12])];

/// Updates before the measured ones.
const WARM_UP: usize = 2;

pub fn optimizer(args: &BenchOptimizer) -> Result<()> {
    let chosen =
        args.formats.iter().map(|name| Ok(name.parse()?)).collect::<Result<Vec<Format>>>()?;
    let plan = Plan {
        sizes: args.sizes.iter().map(|name| size(name)).collect::<Result<_>>()?,
        formats: if chosen.is_empty() { Format::ALL.to_vec() } else { chosen },
        warm_up: WARM_UP,
        repeats: args.repeats,
    };
    let rows = match devices::parse(&args.device)? {
        Name::Cuda(ordinal) if args.variants => return variants(&plan, &devices::open(ordinal)?),
        Name::Cuda(ordinal) => {
            let gpu = devices::open(ordinal)?;
            match args.quantized {
                Some(block) => optimizer::bench::run_cuda_quantized(&plan, &gpu, block)?,
                None => optimizer::bench::run_cuda(&plan, &gpu)?,
            }
        }
        Name::Auto | Name::Cpu if args.variants || args.quantized.is_some() => {
            let flag = if args.variants { "--variants" } else { "--quantized" };
            bail!(Usage(format!("{flag} measures a GPU: name one with --device cuda")));
        }
        Name::Auto | Name::Cpu => in_pool(args.threads, || optimizer::bench::run(&plan))?,
    };
    if args.json {
        return output::json(&rows.iter().map(row_json).collect());
    }
    output::data(&format!("{}\n", updates(&rows)))
}

/// A line for each size, with what all its rows share, and a row for each measurement.
fn updates(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        vec![
            row.size.clone(),
            row.format.to_string(),
            row.mode.to_owned(),
            format!("{:.3}", row.ms_median),
            format!("{:.3}", row.ms_min),
            format!("{:.2}", row.bytes_per_parameter),
            format!("{:.2}", row.state_bytes_per_parameter),
            format!("{:.2}", row.gb_per_s),
            format!("{:.2}", row.copy_gb_per_s),
            format!("{:.1}%", row.share_of_copy * 100.0),
        ]
    };
    let head = [
        "size",
        "format",
        "mode",
        "ms median",
        "ms min",
        "B moved",
        "B state",
        "GB/s",
        "copy GB/s",
        "of copy",
    ];
    let mut sizes: Vec<_> = rows.iter().collect();
    sizes.dedup_by(|next, row| next.size == row.size);
    let size = |row: &&Row| {
        let (parameters, tensors) = (grouped(row.parameters), row.tensors);
        let many = if tensors == 1 { "tensor" } else { "tensors" };
        format!("{}: {parameters} parameters in {tensors} {many}", row.size)
    };
    let sizes: Vec<_> = sizes.iter().map(size).collect();
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let legend =
        "B moved, B state: bytes a parameter that an update moves, and those of its state.";
    format!("{}\n{legend}\n\n{}", sizes.join("\n"), table::columns(&head, &rows))
}

/// Ways to launch the update, beside each other.
fn variants(plan: &Plan, gpu: &gpu_kernels::Gpu) -> Result<()> {
    let rows = optimizer::bench::run_cuda_variants(plan, gpu, &Variant::all())?;
    let cells = |row: &optimizer::bench::VariantRow| {
        vec![
            row.size.clone(),
            row.format.to_string(),
            row.variant.clone(),
            format!("{:.4}", row.ms_median),
            format!("{:.4}", row.ms_min),
            format!("{:.4}", row.ms_max),
            format!("{:.1}%", row.share_of_copy * 100.0),
            row.registers.to_string(),
        ]
    };
    let head =
        ["size", "format", "variant", "ms median", "ms min", "ms max", "of copy", "registers"];
    let rows: Vec<_> = rows.iter().map(cells).collect();
    output::data(&format!("{}\n", table::columns(&head, &rows)))
}

fn size(name: &str) -> Result<Size> {
    match MODELS.iter().find(|(model, _)| *model == name) {
        Some(&(_, [vocabulary, context, channels, layers, heads])) => {
            let dimensions = model::Dimensions { vocabulary, context, channels, layers, heads };
            let layout = model::Layout::new(model::Config::new(dimensions)?);
            let tensor_lengths = layout.slots().iter().map(|slot| slot.length).collect();
            Ok(Size { name: name.to_owned(), tensor_lengths })
        }
        None => Ok(name.parse()?),
    }
}

fn row_json(row: &Row) -> Value {
    json!({
        "device": row.device,
        "format": row.format.to_string(),
        "size": row.size,
        "tensors": row.tensors,
        "parameters": row.parameters,
        "mode": row.mode,
        "parameter_type": row.parameter_type,
        "gradient_type": row.gradient_type,
        "ms_median": row.ms_median,
        "ms_min": row.ms_min,
        "ms_max": row.ms_max,
        "bytes_per_parameter": row.bytes_per_parameter,
        "state_bytes_per_parameter": row.state_bytes_per_parameter,
        "gb_per_s": row.gb_per_s,
        "copy_gb_per_s": row.copy_gb_per_s,
        "share_of_copy": row.share_of_copy,
    })
}

pub fn train(args: &BenchTrain) -> Result<()> {
    if !args.vary.is_empty() {
        return bench_matrix::run(args);
    }
    let world = ranks::join()?;
    let found = ranks::together(&world, || {
        let (settings, _) = settings::load(&args.configuration)?;
        let updates = usize::from(args.updates);
        let found = trainer::bench_with(&settings, args.warm_up, updates, &world)?;
        world.leave()?;
        Ok(found)
    })?;
    if !world.is_first() {
        return Ok(());
    }
    if args.json {
        return output::json(&json!([found]));
    }
    let total: f64 = found.parts.iter().map(|part| part.ms).sum();
    let row = |part: &trainer::PartTime| {
        vec![
            part.name.to_owned(),
            format!("{:.2}", part.ms),
            format!("{:.1}%", part.ms / total * 100.0),
        ]
    };
    let rows: Vec<_> = found.parts.iter().map(row).collect();
    output::data(&format!(
        "{}\n\n{}\n",
        summary(&found),
        table::columns(&["part", "ms", "share"], &rows)
    ))?;
    note("ms by part are means, ms an update is the median");
    note(
        "model FLOPs a token: 6 (parameters of products + L C (T + 1)), forward and backward, attention over the \
         causal half, recomputation not counted",
    );
    Ok(())
}

fn summary(found: &Speed) -> String {
    table::pairs(&[
        ("model", found.model.clone()),
        (
            "update",
            format!(
                "{} x {} tokens in {} and {} state",
                found.batch, found.context, found.precision, found.state_format
            ),
        ),
        (
            "time",
            format!(
                "{:.2} ms an update, {} tokens/s",
                found.ms_per_update,
                grouped(found.tokens_per_s as u64)
            ),
        ),
        (
            "ranks",
            match found.scaling {
                None => "1".to_owned(),
                Some(scaling) => {
                    let each: Vec<_> = found.rank_ms.iter().map(|ms| format!("{ms:.2}")).collect();
                    format!(
                        "{}, {:.1}% of what they have alone; before the end of sums {} ms",
                        found.ranks,
                        scaling * 100.0,
                        each.join(", ")
                    )
                }
            },
        ),
        ("model FLOPs", format!("{:.1} GFLOP/s", found.model_tflops * 1e3)),
        (
            "share of peak",
            format!(
                "{:.1}% of the {:.1} GFLOP/s of a large matrix product",
                found.share_of_peak * 100.0,
                found.peak_tflops * 1e3
            ),
        ),
        ("peak memory", found.peak_bytes.map_or_else(|| "unknown".to_owned(), bytes)),
        (
            "host",
            match found.launches {
                0 => "the processor itself".to_owned(),
                launches => format!(
                    "{:.1} us an update, which launches {} operations at once",
                    found.host_us_per_update,
                    grouped(launches)
                ),
            },
        ),
    ])
}
