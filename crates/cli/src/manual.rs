//! `completions` and `manual`: what shells and `man` know of the command line, made from the same text as its help.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;

use crate::args::{Arguments, Completions, Manual};
use crate::output::{self, note};

/// The name of the program.
const NAME: &str = "packed-adamw";

pub fn completions(args: &Completions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Arguments::command(), NAME, &mut script);
    output::data(&String::from_utf8(script)?)
}

pub fn manual(args: &Manual) -> Result<()> {
    fs::create_dir_all(&args.output).with_context(|| args.output.display().to_string())?;
    let mut command = Arguments::command();
    command.build();
    let pages = write_pages(&command, &args.output)?;
    note(&format!("{pages} pages in {}", args.output.display()));
    Ok(())
}

/// Writes the page of a command and of those below it; how many.
fn write_pages(command: &clap::Command, folder: &Path) -> Result<usize> {
    // Building gave every command its whole name, such as `packed-adamw-bench-train`.
    let name = command.get_display_name().unwrap_or(NAME);
    let path = folder.join(format!("{name}.1"));
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    fs::write(&path, page).with_context(|| path.display().to_string())?;
    let below = command.get_subcommands().filter(|below| below.get_name() != "help");
    below.map(|below| write_pages(below, folder)).sum::<Result<usize>>().map(|pages| pages + 1)
}
