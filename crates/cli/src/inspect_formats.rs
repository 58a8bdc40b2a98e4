//! `inspect-formats`: what each state format can hold. Needs no model, no data and no GPU.

use anyhow::{Result, anyhow};
use formats::{Bias, Format, Lane, Section};
use optimizer::measure::{BETAS2, FormatMeasures, LIVE_RMS, MAGNITUDES, measure};
use serde_json::{Value, json};

use crate::args::InspectFormats;
use crate::output::{self, Usage, grouped};
use crate::table;

/// A tensor size for which bytes are shown: 4,096 elements, a common width.
const EXAMPLE_ELEMENTS: u64 = 4096;

pub fn run(args: &InspectFormats) -> Result<()> {
    let bias =
        Bias::new(u32::from(args.bias)).map_err(|error| anyhow!(Usage(error.to_string())))?;
    let chosen = match &args.format {
        Some(name) => {
            vec![name.parse::<Format>().map_err(|error| anyhow!(Usage(error.to_string())))?]
        }
        None => Format::ALL.to_vec(),
    };
    let measures = chosen.iter().map(|&format| measure(format)).collect::<Result<Vec<_>, _>>()?;
    let both = || chosen.iter().zip(&measures);
    if args.json {
        let describe = |(&format, measures)| describe(format, bias, measures);
        return output::json(&both().map(describe).collect());
    }
    let mut text = overview(&chosen);
    text.push_str(&format!("\n{}\n", kept(both())));
    for &format in &chosen {
        text.push_str(&format!("\n{format}: {}\n", format.description()));
        if format.lanes().is_none() {
            text.push_str(&format!("\n{}\n", arrays_text(format)));
        }
        for lane in format.lanes().into_iter().flatten() {
            text.push_str(&format!("\n{}\n", lane_text(lane, bias)));
        }
    }
    output::data(&text)
}

fn overview(chosen: &[Format]) -> String {
    let row = |format: &Format| {
        vec![
            format.to_string(),
            format!("{:.2}", format.bits_per_parameter()),
            format!("{:.2}", format.bits_per_parameter() / 8.0),
            grouped(format.state_bytes(EXAMPLE_ELEMENTS)),
            if format.is_stochastic() { "stochastic" } else { "nearest" }.to_owned(),
        ]
    };
    let rows: Vec<_> = chosen.iter().map(row).collect();
    let bytes = format!("bytes of {} elements", grouped(EXAMPLE_ELEMENTS));
    let head = ["format", "bits/parameter", "bytes/parameter", &bytes, "rounding"];
    format!("{}\n", table::columns(&head, &rows))
}

/// What formats keep of moments, at the default bias.
fn kept<'a>(rows: impl Iterator<Item = (&'a Format, &'a FormatMeasures)>) -> String {
    let share = |share: f64| format!("{share:.1e}");
    let shares = |shares: &[f64]| shares.iter().map(|&x| share(x)).collect::<Vec<_>>().join(" ");
    let row = |(format, measures): (&Format, &FormatMeasures)| {
        let stalls = measures.stalls.map(|stall| stall.map_or_else(|| "never".to_owned(), share));
        vec![
            format.to_string(),
            format!("{:.3}", measures.bits),
            shares(&measures.rms_errors),
            shares(&measures.first_errors),
            shares(&measures.steps),
            stalls.join(" "),
        ]
    };
    let rows: Vec<_> = rows.map(row).collect();
    let head = [
        "measured",
        "bits/parameter",
        "errors of r",
        "errors of m",
        "steps of r",
        "r stalls below",
    ];
    format!(
        "{}\nerrors at r of {}, those of m relative to r; r stalls below, at beta2 of {}",
        table::columns(&head, &rows),
        MAGNITUDES.map(|magnitude| format!("{magnitude:e}")).join(" "),
        BETAS2.map(|beta| beta.to_string()).join(" ")
    )
}

/// The arrays of a format whose elements are stored in blocks.
fn arrays_text(format: Format) -> String {
    let row = |section: Section| {
        vec![
            section.name.to_owned(),
            section.element.to_string(),
            grouped(section.count),
            grouped(section.bytes()),
            format!("{:.4}", section.bytes() as f64 * 8.0 / EXAMPLE_ELEMENTS as f64),
        ]
    };
    let rows: Vec<_> = format.sections(EXAMPLE_ELEMENTS).map(row).collect();
    let head = ["array", "type", "count", "bytes", "bits/parameter"];
    let facts = table::pairs(&[("block", format!("{} elements", format.block_elements()))]);
    format!("{facts}\n\n{}", table::columns(&head, &rows))
}

fn lane_text(lane: Lane, bias: Bias) -> String {
    let number = lane.number;
    let with_bias = if number.has_bias() { format!(", bias {bias}") } else { String::new() };
    let sign = if number.has_sign() { "1 sign, " } else { "" };
    let bits = format!(
        "{} bits: {sign}{} exponent, {} fraction{with_bias}",
        number.bits(),
        number.exponent_bits(),
        number.fraction_bits()
    );
    let relative = 2f64.powi(-(number.fraction_bits() as i32));
    let subnormals = (1_u64 << number.fraction_bits()) - 1;
    let facts = table::pairs(&[
        ("moment", format!("{} as {}", lane.moment.symbol(), number.name())),
        ("layout", bits),
        ("largest finite", format!("{:e}", number.largest(bias))),
        ("smallest normal", format!("{:e}", number.smallest_normal(bias))),
        ("relative step", format!("{relative:e} of the binade")),
        (
            "subnormals",
            format!("{} codes, step {:e}", grouped(subnormals), number.subnormal_step(bias)),
        ),
    ]);
    // Two more for the prefix.
    let width = number.bits().div_ceil(4) as usize + 2;
    let row = |&(name, code): &(&str, u32)| {
        let value = number.decode(code, bias);
        vec![name.to_owned(), format!("{code:#0width$x}"), format!("{value:e}")]
    };
    let rows: Vec<_> = number.landmarks().iter().map(row).collect();
    format!("{facts}\n\n{}", table::columns(&["code", "bits", "value"], &rows))
}

fn describe(format: Format, bias: Bias, measures: &FormatMeasures) -> Value {
    let lane = |lane: Lane| {
        let number = lane.number;
        let code = |&(name, code): &(&str, u32)| json!({ "name": name, "code": code, "value": number.decode(code, bias) });
        json!({
            "moment": lane.moment.symbol(),
            "number": number.name(),
            "bits": number.bits(),
            "exponent_bits": number.exponent_bits(),
            "fraction_bits": number.fraction_bits(),
            "signed": number.has_sign(),
            "bias": number.has_bias().then(|| bias.get()),
            "largest": number.largest(bias),
            "smallest_normal": number.smallest_normal(bias),
            "subnormal_step": number.subnormal_step(bias),
            "codes": number.landmarks().iter().map(code).collect::<Vec<_>>(),
        })
    };
    let array = |section: Section| {
        json!({
            "name": section.name,
            "type": section.element.name(),
            "count": section.count,
            "bytes": section.bytes(),
        })
    };
    json!({
        "format": format.to_string(),
        "description": format.description(),
        "bits_per_parameter": format.bits_per_parameter(),
        "stochastic": format.is_stochastic(),
        "lanes": format.lanes().map(|lanes| lanes.map(lane)),
        "block_elements": format.block_elements(),
        "measured": {
            "bits_per_parameter": measures.bits,
            "magnitudes": MAGNITUDES,
            "rms_errors": measures.rms_errors,
            "first_errors": measures.first_errors,
            "rms_steps": measures.steps,
            "betas2": BETAS2,
            "live_rms": LIVE_RMS,
            "rms_stalls_below": measures.stalls,
        },
        "arrays": format.sections(EXAMPLE_ELEMENTS).map(array).collect::<Vec<_>>(),
    })
}
