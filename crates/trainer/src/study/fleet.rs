//! Processes that make runs: one a device, started, watched, stopped, started again.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpu_kernels::Gpu;

use super::{RunState, Study};
use crate::error::Error;

/// Time between looks at the processes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Exit codes of the program that another try would only repeat: usage, and a device that is missing.
const HOPELESS: [i32; 2] = [2, 3];

/// The exit code of a run that was stopped with a checkpoint.
const STOPPED: i32 = 75;

/// How processes are made.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// The program.
    pub program: PathBuf,
    /// The devices, such as `cuda:0`; a process at a time on each entry, so one that is named twice has two.
    pub devices: Vec<String>,
    /// How often a run that failed is tried again.
    pub retries: u32,
}

/// What happens to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetEvent {
    /// A process makes it.
    Started {
        /// The run.
        name: String,
        /// The device.
        device: String,
        /// Whether it goes on from a checkpoint.
        resumes: bool,
    },
    /// It is finished.
    Finished {
        /// The run.
        name: String,
    },
    /// Its process failed and it is tried again.
    Retried {
        /// The run.
        name: String,
        /// What the process said.
        message: String,
    },
    /// It failed for good.
    Failed {
        /// The run.
        name: String,
        /// What the process said.
        message: String,
    },
    /// It stopped with a checkpoint.
    Stopped {
        /// The run.
        name: String,
    },
}

impl Fleet {
    /// Every CUDA device, or the processor where there is none.
    #[must_use]
    pub fn all_devices() -> Vec<String> {
        match Gpu::count().unwrap_or(0) {
            0 => vec!["cpu".to_owned()],
            count => (0..count).map(|ordinal| format!("cuda:{ordinal}")).collect(),
        }
    }

    pub(super) fn run(
        &self,
        study: &mut Study,
        names: &[String],
        stop: &AtomicBool,
        observer: &mut dyn FnMut(&FleetEvent),
    ) -> Result<bool, Error> {
        let mut waiting = VecDeque::new();
        for name in names {
            if study.finished(name)?.is_some() {
                study.set_state(name, RunState::Finished)?;
            } else {
                waiting.push_back(Attempt { name: name.clone(), failures: 0 });
            }
        }
        let mut crew = Crew { fleet: self, study, observer, waiting, workers: Vec::new() };
        let ended = crew.work(stop);
        if ended.is_err() {
            crew.stop_all();
        }
        ended
    }
}

/// A run and how often it failed so far.
#[derive(Clone, Debug)]
struct Attempt {
    name: String,
    failures: u32,
}

/// A process at work.
struct Worker {
    child: Child,
    attempt: Attempt,
    /// Position of its device.
    slot: usize,
}

struct Crew<'a> {
    fleet: &'a Fleet,
    study: &'a mut Study,
    observer: &'a mut dyn FnMut(&FleetEvent),
    waiting: VecDeque<Attempt>,
    workers: Vec<Worker>,
}

impl Crew<'_> {
    fn work(&mut self, stop: &AtomicBool) -> Result<bool, Error> {
        let mut stopping = false;
        loop {
            if stop.load(Ordering::Relaxed) && !stopping {
                stopping = true;
                self.ask_to_stop();
            }
            self.take_ended()?;
            if !stopping {
                self.fill_devices()?;
            }
            if self.workers.is_empty() && (stopping || self.waiting.is_empty()) {
                return Ok(stopping);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn fill_devices(&mut self) -> Result<(), Error> {
        for slot in 0..self.fleet.devices.len() {
            if self.workers.iter().any(|worker| worker.slot == slot) {
                continue;
            }
            let Some(attempt) = self.waiting.pop_front() else { return Ok(()) };
            let resumes = self.clear_way(&attempt.name)?;
            let child = self.start(&attempt.name, slot, resumes)?;
            let (name, device) = (attempt.name.clone(), self.fleet.devices[slot].clone());
            self.workers.push(Worker { child, attempt, slot });
            self.study.set_state(&name, RunState::Running { device: device.clone() })?;
            (self.observer)(&FleetEvent::Started { name, device, resumes });
        }
        Ok(())
    }

    /// Removes what a run without a checkpoint left behind; whether there is one to go on from.
    fn clear_way(&self, name: &str) -> Result<bool, Error> {
        let folder = self.study.run_folder(name);
        let resumes = folder.join("checkpoints/latest").exists();
        if !resumes && folder.exists() {
            fs::remove_dir_all(&folder).map_err(Error::io("remove", &folder))?;
        }
        Ok(resumes)
    }

    fn start(&self, name: &str, slot: usize, resumes: bool) -> Result<Child, Error> {
        let log_file = self.study.log_file(name);
        let log = OpenOptions::new().create(true).append(true).open(&log_file);
        let log = log.map_err(Error::io("open", &log_file))?;
        let device = &self.fleet.devices[slot];
        let mut command = Command::new(&self.fleet.program);
        command.arg("train").arg("--config").arg(self.study.config_file(name));
        command.arg("--output-dir").arg(self.study.run_folder(name)).arg("--device").arg(device);
        command.arg("--stop-with-parent");
        let alike = self.fleet.devices.iter().filter(|other| *other == "cpu").count();
        if device == "cpu" && alike > 1 {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            command.arg("--set").arg(format!("run.threads={}", (cores / alike).max(1)));
        }
        if resumes {
            command.arg("--resume");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().map_err(Error::io("start", &self.fleet.program))
    }

    fn take_ended(&mut self) -> Result<(), Error> {
        let mut index = 0;
        while index < self.workers.len() {
            let ended = self.workers[index].child.try_wait();
            match ended.map_err(Error::io("watch", &self.fleet.program))? {
                Some(status) => {
                    let worker = self.workers.swap_remove(index);
                    self.ended(worker.attempt, status)?;
                }
                None => index += 1,
            }
        }
        Ok(())
    }

    fn ended(&mut self, attempt: Attempt, status: ExitStatus) -> Result<(), Error> {
        let name = attempt.name.clone();
        let (state, event) = match status.code() {
            Some(0) => (RunState::Finished, FleetEvent::Finished { name: name.clone() }),
            Some(STOPPED) => {
                self.waiting.push_front(attempt);
                (RunState::Waiting, FleetEvent::Stopped { name: name.clone() })
            }
            code => {
                let message = last_words(&self.study.log_file(&name), status);
                let hopeless = code.is_some_and(|code| HOPELESS.contains(&code));
                if hopeless || attempt.failures >= self.fleet.retries {
                    let failed = RunState::Failed { message: message.clone() };
                    (failed, FleetEvent::Failed { name: name.clone(), message })
                } else {
                    let failures = attempt.failures + 1;
                    self.waiting.push_front(Attempt { failures, ..attempt });
                    (RunState::Waiting, FleetEvent::Retried { name: name.clone(), message })
                }
            }
        };
        self.study.set_state(&name, state)?;
        (self.observer)(&event);
        Ok(())
    }

    fn ask_to_stop(&mut self) {
        for worker in &mut self.workers {
            ask_to_stop(&mut worker.child);
        }
    }

    /// Leaves no process behind.
    fn stop_all(&mut self) {
        self.ask_to_stop();
        for worker in &mut self.workers {
            // What went wrong there matters less than what ended the study.
            let _ = worker.child.wait();
        }
    }
}

/// Has this process asked to stop, as by SIGTERM, when the one that started it is gone, so that a study that was
/// killed leaves no process behind. On systems that know no such request it does nothing.
pub fn stop_with_parent() {
    // Where it is refused the process runs to its end, which is no harm.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
}

/// Asks a process to stop; one that ended already is not missed.
fn ask_to_stop(child: &mut Child) {
    #[cfg(unix)]
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_child(child),
        rustix::process::Signal::TERM,
    );
    #[cfg(not(unix))]
    let _ = child.kill();
}

/// The last line that a process wrote, or how it ended where it wrote nothing.
fn last_words(log: &Path, status: ExitStatus) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().rev().find(|line| line.starts_with("error: "));
    match line.or_else(|| text.lines().rev().find(|line| !line.trim().is_empty())) {
        Some(line) if status.code().is_some() => line.trim_start_matches("error: ").to_owned(),
        Some(line) => format!("{status}, after: {line}"),
        None => status.to_string(),
    }
}
