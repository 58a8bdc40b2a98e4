//! Finite sequential training with exact resume.
//!
//! The trainer joins the floors below it: tapes feed the network, the network feeds the optimizer, and what
//! they do is checkpointed, validated, measured and drawn. The same configuration and seed give the same bits
//! for any number of threads, with or without interruptions.
//!
//! | file | what it holds |
//! |---|---|
//! | `settings`, `config` | keys, defaults and origins; the checked configuration |
//! | `schedule`, `budget` | the learning rate; how long a run is and what each update reads |
//! | `corpus`, `feed` | the tapes of a run; the tokens of each update |
//! | `pool`, `stage` | ranges of tapes on the device; the rows of updates, laid out ahead |
//! | `batch` | batches of validation |
//! | `setup`, `engine`, `passes`, `together` | the network and optimizer asked for; updates over any device, one or a few at once |
//! | `session`, `run` | the training loop; a run from its settings to its summary |
//! | `world`, `agree` | the ranks that share a run; what they must have in common |
//! | `evaluate`, `sample` | scoring a tape; writing text |
//! | `checkpoint`, `manifest` | what is written to resume from, and how it is verified |
//! | `events`, `metrics`, `summary`, `curves` | what happened, for machines and for people |
//! | `tensorboard`, `plot` | the same for TensorBoard; how pictures are drawn |
//! | `shadow` | other state formats, fed the gradients of a run |
//! | `record`, `report`, `statistics` | runs read back; pages on them; what few values say |
//! | `study`, `compare`, `campaign` | sets of runs in processes of their own; matched pairs; promotion |
//! | `restored` | a model read back from a checkpoint |
//! | `plan`, `trial` | what a run would do; updates on made-up tokens and their speed |
//! | `folder`, `read`, `device` | the run folder and its lock; files read with care; which device computes |
//!
//! ```
//! use std::path::Path;
//! use trainer::config::Config;
//! use trainer::{QUICKSTART, Settings};
//!
//! let mut settings = Settings::new();
//! settings.add_file(QUICKSTART, Path::new("configs/quickstart.toml"))?;
//! settings.add_assignment("run.batch=4")?;
//! assert_eq!(Config::new(&settings)?.run.batch, 4);
//! let unknown = settings.add_assignment("run.batc=4").unwrap_err();
//! assert!(unknown.to_string().contains("`run.batch`"));
//! # Ok::<(), trainer::Error>(())
//! ```
//!
//! Nothing here prints: an [`Observer`](events::Observer) is told every [`Event`](events::Event).

mod settings;

pub mod config;

mod budget;
mod feed;
mod memory;
mod pool;
mod schedule;
mod shards;
mod stage;

mod batch;
mod corpus;

mod engine;
mod passes;
mod setup;
mod together;
mod updater;
mod world;

mod agree;
mod among;

mod run;
mod session;

mod evaluate;
mod sample;

mod checkpoint;
mod convert;
pub mod manifest;
mod writer;

mod curves;
pub mod events;
pub mod metrics;
mod plot;
mod summary;
mod tensorboard;

mod record;
pub mod report;
mod statistics;

pub mod shadow;

pub mod campaign;
pub mod compare;
pub mod study;

mod parity;
mod replay;
mod restored;
mod transformers;

mod plan;
mod trial;

mod device;
mod device_tree;
mod folder;
mod guard;
mod read;

mod error;

pub use among::{Reduced, all_reduce_speed};
pub use checkpoint::Checkpoint;
pub use convert::{Conversion, Converted, Distance, convert};
pub use corpus::open_tape;
pub use device::Device;
pub use error::{Error, Kind};
pub use evaluate::Evaluation;
pub use folder::{first_free, last_taken};
pub use memory::Memory;
pub use parity::{Distances, Trained};
pub use plan::{Plan, plan, plan_with};
pub use plot::{running_mean, thin};
pub use read::{own_text as read_own_text, text as read_text};
pub use record::RunRecord;
pub use replay::{Replay, TensorNorms, replay};
pub use restored::Restored;
pub use run::{Ending, Request, in_pool, run, run_on, run_with};
pub use sample::Sampling;
pub use schedule::{Schedule, Shape, Span, Unit};
pub use settings::{KEYS, Key, QUICKSTART, Setting, Settings};
pub use summary::{Summary, peak_bytes};
pub use transformers::{Imported, export, import};
pub use trial::{PartTime, Smoke, Speed, bench, bench_with, smoke};
pub use world::{Local, Share, World};
