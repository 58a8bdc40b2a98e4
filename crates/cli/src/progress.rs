//! Progress of long work, drawn on standard error.
//!
//! On a terminal there is a moving bar with rate, loss and time left. Elsewhere (a log file, a pipe) there is
//! a plain line every few seconds, so that a log stays readable.

use std::io::{IsTerminal as _, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use trainer::events::{Event, Observer, Update, Validation};

use crate::output::{self, duration, grouped, note};
use crate::train::rank_bytes;

/// Time between plain lines.
const QUIET: Duration = Duration::from_secs(10);

/// Weight of the newest update in the smoothed loss shown.
const NEWEST: f64 = 0.05;

/// A bar on a terminal, or plain lines elsewhere.
pub struct Bar {
    bar: ProgressBar,
    length: u64,
    done_before: u64,
    begun: Instant,
    terminal: bool,
    spoken: Instant,
}

impl Bar {
    /// A bar of `length` steps, of which `done` were done before; `unit` names a step.
    pub fn new(length: u64, done: u64, unit: &str) -> Self {
        let terminal = stderr().is_terminal();
        let bar =
            ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr_with_hz(8));
        let style = format!("{{bar:28}} {{pos}}/{{len}} {unit}  {{msg}}");
        let style = ProgressStyle::with_template(&style).expect("the template is valid");
        bar.set_style(style.progress_chars("━╸─"));
        bar.set_position(done);
        let begun = Instant::now();
        Self { bar, length, done_before: done, begun, terminal, spoken: begun }
    }

    /// Moves to `done` steps, with a word on how it goes.
    pub fn at(&mut self, done: u64, message: impl FnOnce() -> String) {
        self.bar.set_position(done);
        if self.terminal {
            self.bar.set_message(format!("{}  {} left", message(), self.left(done)));
        } else if self.spoken.elapsed() >= QUIET {
            self.spoken = Instant::now();
            note(&format!("{done}/{}  {}  {} left", self.length, message(), self.left(done)));
        }
    }

    /// Time left at the mean pace so far.
    fn left(&self, done: u64) -> String {
        let steps = done.saturating_sub(self.done_before).max(1) as f64;
        let to_do = self.length.saturating_sub(done) as f64;
        duration(self.begun.elapsed().as_secs_f64() / steps * to_do)
    }

    /// Writes a line above the bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| note(line));
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// Shows a training run.
#[derive(Default)]
pub struct Training {
    bar: Option<Bar>,
    inner: Option<Bar>,
    updates_total: u64,
    loss: Option<f64>,
    /// When it was last said that the device is made ready.
    readying: Option<Instant>,
}

impl Training {
    fn update(&mut self, update: &Update) {
        let (name, value) = match update.bpb {
            Some(bpb) => ("bits/byte", bpb),
            None => ("nats/token", update.loss_nats),
        };
        let smooth = self.loss.map_or(value, |loss| loss + NEWEST * (value - loss));
        self.loss = Some(smooth).filter(|loss| loss.is_finite());
        let rate = grouped(update.tokens_per_s as u64);
        if let Some(bar) = &mut self.bar {
            bar.at(update.update, || format!("{name} {smooth:.4}  {rate} tokens/s"));
        }
        if update.skipped {
            self.say(&format!(
                "update {} dropped: {} elements were not finite",
                update.update, update.nonfinite
            ));
        }
    }

    fn readying(&mut self, kernels: u64, products: u64) {
        if self.readying.is_some_and(|spoken| spoken.elapsed() < QUIET) {
            return;
        }
        self.readying = Some(Instant::now());
        note(&format!(
            "making the device ready, once on a machine: {kernels} kernels compiled, {products} products timed"
        ));
    }

    fn validation(&mut self, name: &str, found: &Validation) {
        if let Some(inner) = self.inner.take() {
            inner.clear();
        }
        let bpb = found.bpb.map_or_else(String::new, |bpb| format!("  {bpb:.4} bits/byte"));
        self.say(&format!(
            "{name} at update {:>6}: {:.4} nats/token  perplexity {:.2}{bpb}  ({} tokens)",
            found.update,
            found.loss_nats,
            found.perplexity,
            grouped(found.validation_tokens)
        ));
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.say(line),
            None => note(line),
        }
    }

    fn inner(&mut self, done: u64, total: u64, unit: &str, what: &'static str) {
        let inner = self.inner.get_or_insert_with(|| Bar::new(total, 0, unit));
        inner.at(done, || what.to_owned());
        if done >= total
            && let Some(inner) = self.inner.take()
        {
            inner.clear();
        }
    }

    fn end(&mut self) {
        for bar in [self.inner.take(), self.bar.take()].into_iter().flatten() {
            bar.clear();
        }
    }
}

impl Observer for Training {
    fn observe(&mut self, event: &Event) {
        match event {
            Event::Preparing { bytes, bytes_total } => {
                self.inner(bytes / 1000, bytes_total / 1000, "kB", "preparing text");
            }
            Event::Readying { kernels, products } => self.readying(*kernels, *products),
            Event::Started { update, updates_total, .. } => {
                if let Some(inner) = self.inner.take() {
                    inner.clear();
                }
                self.updates_total = *updates_total;
                note(&started(event));
                self.bar = Some(Bar::new(*updates_total, *update, "updates"));
            }
            Event::Update(update) => self.update(update),
            Event::Validating { windows, windows_total } => {
                self.inner(*windows, *windows_total, "windows", "validating");
            }
            Event::Validation(found) => self.validation("validation", found),
            Event::FinalValidation(found) => self.validation("final validation", found),
            Event::Checkpoint { path, .. } => self.say(&format!("checkpoint {}", path.display())),
            Event::Sample { .. } => {}
            Event::Stopped { .. } | Event::Finished { .. } => self.end(),
        }
    }
}

fn started(event: &Event) -> String {
    let Event::Started {
        update,
        updates_total,
        parameters,
        tokens_total,
        state_format,
        device,
        threads,
        ranks,
        rank_state_bytes,
    } = event
    else {
        unreachable!("only called for a start");
    };
    let from = if *update > 0 { format!(", going on from update {update}") } else { String::new() };
    let threads = output::threads(*threads);
    let mut by = if *ranks > 1 { format!(" by {ranks} ranks") } else { String::new() };
    if !rank_state_bytes.is_empty() {
        by = format!("{by}, optimizer state of {}", rank_bytes(rank_state_bytes));
    }
    format!(
        "training {} parameters with {state_format} state on {device} ({threads}){by}: {} updates, {} \
         tokens{from}",
        grouped(*parameters),
        grouped(*updates_total),
        grouped(*tokens_total)
    )
}
