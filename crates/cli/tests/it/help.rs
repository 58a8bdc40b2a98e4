//! What a user reads first: help and the tables of `inspect-formats`, held as snapshots.

use std::path::Path;

use crate::program::data;

#[test]
fn help_of_every_command() {
    let commands: &[&[&str]] = &[
        &[],
        &["train"],
        &["smoke"],
        &["eval"],
        &["generate"],
        &["prepare"],
        &["tokenizer"],
        &["tokenizer", "train"],
        &["tokenizer", "encode"],
        &["tokenizer", "decode"],
        &["tokenizer", "info"],
        &["inspect-formats"],
        &["inspect"],
        &["campaign"],
        &["compare"],
        &["report"],
        &["watch"],
        &["replay"],
        &["doctor"],
        &["check"],
        &["bench", "optimizer"],
        &["bench", "train"],
        &["bench", "data"],
        &["export"],
        &["import"],
        &["convert"],
        &["completions"],
        &["manual"],
        &["kernels"],
    ];
    for &command in commands {
        let args = [command, &["--help"]].concat();
        let name = if command.is_empty() { "top".to_owned() } else { command.join("-") };
        insta::assert_snapshot!(format!("help-{name}"), data(Path::new("."), &args));
    }
}

#[test]
fn the_tables_of_inspect_formats() {
    insta::assert_snapshot!("inspect-formats", data(Path::new("."), &["inspect-formats"]));
    let one = data(Path::new("."), &["inspect-formats", "--format", "e4", "--bias", "20"]);
    insta::assert_snapshot!("inspect-formats-e4-bias-20", one);
}
