//! Every update and validation of a set of runs as rows of comma-separated values.

use std::fmt::Write as _;

use crate::events::Event;
use crate::record::RunRecord;

const HEAD: &str = "run,event,update,tokens,elapsed_s,loss_nats,bpb,learning_rate,gradient_norm,ms,tokens_per_s,\
nonfinite,saturated_m,saturated_r,skipped,validation_tokens\n";

/// The rows of all runs, with a head. What an event does not have stays empty.
#[must_use]
pub fn metrics(runs: &[RunRecord]) -> String {
    let mut text = String::from(HEAD);
    for run in runs {
        let name = quoted(&run.name());
        for event in &run.events {
            // Writing to a text cannot fail.
            let _ = match event {
                Event::Update(u) => writeln!(
                    text,
                    "{name},update,{},{},{},{},{},{},{},{},{},{},{},{},{},",
                    u.update,
                    u.tokens,
                    u.elapsed_s,
                    u.loss_nats,
                    optional(u.bpb),
                    u.learning_rate,
                    u.gradient_norm,
                    u.ms,
                    u.tokens_per_s,
                    u.nonfinite,
                    u.saturated_m,
                    u.saturated_r,
                    u.skipped
                ),
                Event::Validation(v) | Event::FinalValidation(v) => {
                    let is_final = matches!(event, Event::FinalValidation(_));
                    let kind = if is_final { "final_validation" } else { "validation" };
                    writeln!(
                        text,
                        "{name},{kind},{},{},{},{},{},,,,,,,,,{}",
                        v.update,
                        v.tokens,
                        v.elapsed_s,
                        v.loss_nats,
                        optional(v.bpb),
                        v.validation_tokens
                    )
                }
                _ => Ok(()),
            };
        }
    }
    text
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
