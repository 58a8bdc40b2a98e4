//! The `packed-adamw` command: text to tapes, tapes to models, models to text.
//!
//! `args.rs` is the command line as clap reads it; every command then has a file of its own. Text for people
//! goes to standard error, data to standard output. Exit codes: 0 done, 1 failed, 2 usage or configuration,
//! 3 wanted device missing, 75 stopped on request with a checkpoint to resume from.

mod args;
mod output;
mod progress;
mod settings;
mod signals;
mod studies;
mod table;

mod bench;
mod bench_data;
mod bench_matrix;
mod campaign;
mod check;
mod compare;
mod convert;
mod devices;
mod doctor;
mod doctor_nccl;
mod eval;
mod exchange;
mod generate;
mod inspect;
mod inspect_formats;
mod inspect_tape;
mod kernels;
mod launch;
mod manual;
mod prepare;
mod ranks;
mod replay;
mod report;
mod smoke;
mod tokenizer;
mod train;
mod watch;

use std::process::ExitCode;

use anyhow::Error;
use clap::Parser as _;
use trainer::Kind;

use crate::args::{Arguments, Bench, Command};
use crate::ranks::Quiet;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const DEVICE_MISSING: u8 = 3;
const STOPPED: u8 = 75;

/// How a command that did not fail ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    /// All of it.
    Finished,
    /// Stopped on request, with a checkpoint to resume from.
    Stopped,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match dispatch(&arguments.command) {
        Ok(Done::Finished) => ExitCode::SUCCESS,
        Ok(Done::Stopped) => ExitCode::from(STOPPED),
        // Whoever reads our output has seen enough.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<Quiet>() => ExitCode::from(exit_code(&error)),
        Err(error) => {
            output::note(&format!("error: {}", output::sentence(&error)));
            ExitCode::from(exit_code(&error))
        }
    }
}

fn dispatch(command: &Command) -> Result<Done, Error> {
    let done = match command {
        Command::Train(args) => return train::run(args),
        Command::Launch(args) => return launch::run(args),
        Command::Compare(args) => return compare::run(args),
        Command::Campaign(args) => return campaign::run(args),
        Command::Watch(args) => watch::run(args),
        Command::Report(args) => report::run(args),
        Command::Smoke(args) => smoke::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Prepare(args) => prepare::run(args),
        Command::Tokenizer(command) => tokenizer::run(command),
        Command::InspectFormats(args) => inspect_formats::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Check(args) => check::run(args),
        Command::Export(args) => exchange::export(args),
        Command::Import(args) => exchange::import(args),
        Command::Convert(args) => convert::run(args),
        Command::Completions(args) => manual::completions(args),
        Command::Manual(args) => manual::manual(args),
        Command::Kernels(args) => kernels::run(args),
        Command::Bench(Bench::Optimizer(args)) => bench::optimizer(args),
        Command::Bench(Bench::Train(args)) => bench::train(args),
        Command::Bench(Bench::Data(args)) => bench_data::run(args),
    };
    done.map(|()| Done::Finished)
}

fn exit_code(error: &Error) -> u8 {
    if let Some(Quiet(code)) = error.downcast_ref() {
        return *code;
    }
    match error.downcast_ref::<trainer::Error>().map(trainer::Error::kind) {
        Some(Kind::Usage) => USAGE,
        Some(Kind::DeviceMissing) => DEVICE_MISSING,
        Some(Kind::Failed) => FAILED,
        None if error.is::<output::Usage>() => USAGE,
        None if error.is::<devices::Missing>() => DEVICE_MISSING,
        None => FAILED,
    }
}
