//! Arguments of the commands that make or show several runs.

use std::path::PathBuf;

use clap::Args;

use super::Configuration;

/// Where the runs of a study go and what makes them.
#[derive(Debug, Args)]
pub struct Fleet {
    /// Folder for runs, report and state; runs/NAME-N with the first free N when absent
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Go on with the study in the folder
    #[arg(long)]
    pub resume: bool,
    /// Devices, one process on each at a time, such as cuda:0,cuda:1; when absent that of the settings,
    /// or else all CUDA devices, or else the processor
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub devices: Vec<String>,
    /// Processes that share each run, one for each of so many CUDA devices, or all on the processor
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub ranks: u16,
    /// How often a run that failed is tried again
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub retries: u32,
}

#[derive(Debug, Args)]
pub struct Compare {
    /// Run folders that exist already, in place of --config; they must differ in one setting and in seeds
    #[arg(value_name = "RUN", conflicts_with_all = ["config", "assignments", "tune", "resume", "devices", "ranks"])]
    pub runs: Vec<PathBuf>,
    #[command(flatten)]
    pub configuration: Configuration,
    /// What differs: KEY=V1,V2,... (parted by semicolons where a value has commas), the baseline first.
    /// For run folders, only the KEY
    #[arg(long, value_name = "KEY=LIST")]
    pub vary: Option<String>,
    /// Seeds of the pairs: 1..5, both ends included, or 1,2,3
    #[arg(long, value_name = "SEEDS", default_value = "1..3")]
    pub seeds: String,
    /// First find each variant's own best value of this, with the first seed: KEY=V1,V2,...
    #[arg(long, value_name = "KEY=LIST")]
    pub tune: Option<String>,
    /// Relative change of the baseline's initial weights that shows noise; 0 makes no such runs
    #[arg(long, value_name = "X", default_value_t = 1e-6)]
    pub perturbation: f64,
    /// Feed the gradients of the baseline's first run to the other state formats, to count what
    /// stalls in them (with --vary optimizer.state)
    #[arg(long, conflicts_with = "runs")]
    pub shadow: bool,
    /// For run folders: the value that others are compared with; that of the first folder when absent
    #[arg(long, value_name = "VALUE", requires = "runs")]
    pub baseline: Option<String>,
    #[command(flatten)]
    pub fleet: Fleet,
    /// Also write metrics.csv, every update of every run
    #[arg(long)]
    pub csv: bool,
    /// Print the comparison as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Report {
    /// Run folders, or folders of studies for all their runs
    #[arg(value_name = "DIR", required = true)]
    pub paths: Vec<PathBuf>,
    /// Where the report goes
    #[arg(long, value_name = "DIR", default_value = "report")]
    pub output_dir: PathBuf,
    /// Its title
    #[arg(long, value_name = "TEXT", default_value = "Runs")]
    pub title: String,
    /// Also write metrics.csv, every update of every run
    #[arg(long)]
    pub csv: bool,
    /// Also write events for TensorBoard, a folder for each run
    #[arg(long)]
    pub tensorboard: bool,
    /// Print what comparison.json holds on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Campaign {
    /// Campaign file
    #[arg(value_name = "FILE", default_value = "configs/campaign-20m-50m-90m.toml")]
    pub file: PathBuf,
    /// Override one key in all runs; what the runs differ in stays. May be given many times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub assignments: Vec<String>,
    #[command(flatten)]
    pub fleet: Fleet,
    /// Show the runs and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Take the fastest settings of each model from what `bench train --output FILE` wrote
    #[arg(long, value_name = "FILE")]
    pub benchmark: Option<PathBuf>,
    /// Write batch scripts for a Slurm cluster in place of making the runs here
    #[arg(long)]
    pub slurm: bool,
    /// With --slurm: also submit them
    #[arg(long, requires = "slurm")]
    pub submit: bool,
    /// The program that submits
    #[arg(long, value_name = "PROGRAM", default_value = "sbatch")]
    pub sbatch: PathBuf,
    /// Make one run, as a task of a batch array: short:INDEX or long:INDEX
    #[arg(long, value_name = "STAGE:INDEX", conflicts_with_all = ["slurm", "resume"])]
    pub task: Option<String>,
    /// Write report and results of runs that were made by tasks
    #[arg(long, conflicts_with_all = ["slurm", "task", "resume"])]
    pub collect: bool,
    /// Print what complete.json holds on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Watch {
    /// A run folder, or the folder of a comparison or campaign
    #[arg(value_name = "RUN_OR_STUDY")]
    pub path: PathBuf,
    /// Milliseconds between looks at the files
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub every_ms: u64,
    /// Print one picture as text and end, as happens where standard output is no terminal
    #[arg(long)]
    pub once: bool,
    /// Columns of that picture
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u16).range(40..))]
    pub width: u16,
    /// Its lines
    #[arg(long, value_name = "N", default_value_t = 36, value_parser = clap::value_parser!(u16).range(12..))]
    pub height: u16,
}

#[derive(Debug, Args)]
pub struct BenchTrain {
    #[command(flatten)]
    pub configuration: Configuration,
    /// Updates before measuring
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub warm_up: usize,
    /// Measured updates
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub updates: u16,
    /// Measure every combination of these, each in a process of its own, such as run.batch=1,2,4; may
    /// be given many times
    #[arg(long, value_name = "KEY=LIST")]
    pub vary: Vec<String>,
    /// With --vary: sequences of an update, which micro-batches and accumulation share; those of the
    /// configuration when absent
    #[arg(long, value_name = "N", requires = "vary")]
    pub effective_batch: Option<usize>,
    /// With --vary: also put the rows into this file, such as benchmark_results.json, which `campaign
    /// --benchmark` reads
    #[arg(long, value_name = "FILE", requires = "vary")]
    pub output: Option<PathBuf>,
    /// Print rows as JSON
    #[arg(long)]
    pub json: bool,
}
