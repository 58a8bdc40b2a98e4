//! Processes that make runs: one a device, or with several ranks one for a group of devices, started, watched,
//! stopped, started again.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpu_kernels::Gpu;

use super::{RunState, Study};
use crate::error::Error;
use crate::folder::RunFolder;

/// Time between looks at the processes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long a run of a study before may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

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
    /// Processes that share a run. Each run then takes so many CUDA devices, those that follow each other in the list; or
    /// all of its processes share an entry that is the processor.
    pub ranks: usize,
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

    /// Where runs are made, one at a time in each.
    fn places(&self) -> Result<Vec<Place>, Error> {
        let Self { devices, ranks, .. } = self;
        let is_cuda = |device: &&String| device.starts_with("cuda");
        if *ranks == 1 || !devices.iter().any(|device| is_cuda(&device)) {
            let alone = |device: &String| Place {
                name: device.clone(),
                device: device.clone(),
                visible: None,
            };
            return Ok(devices.iter().map(alone).collect());
        }
        if !devices.iter().all(|device| is_cuda(&device)) || devices.len() % ranks != 0 {
            return Err(Error::Study {
                place: format!("{ranks} ranks"),
                message: format!(
                    "expected {ranks} CUDA devices or a multiple, found {}: {}; name those to take with --devices",
                    devices.len(),
                    devices.join(", ")
                ),
            });
        }
        let seen = std::env::var(VISIBLE).ok();
        devices.chunks_exact(*ranks).map(|group| Place::of(group, seen.as_deref())).collect()
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
        let (places, workers) = (self.places()?, Vec::new());
        let mut crew = Crew { fleet: self, places, study, observer, waiting, workers };
        let ended = crew.work(stop);
        if ended.is_err() {
            crew.stop_all();
        }
        ended
    }
}

/// The variable that says which devices a process sees, and in which order.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Where a run is made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// For people.
    name: String,
    /// As the program is told.
    device: String,
    /// The CUDA devices of the ranks, in the order of ranks.
    visible: Option<String>,
}

impl Place {
    /// A group of CUDA devices, each a rank's, where `seen` of all are visible here.
    fn of(group: &[String], seen: Option<&str>) -> Result<Self, Error> {
        let seen: Option<Vec<&str>> = seen.map(|list| list.split(',').map(str::trim).collect());
        let visible = group.iter().map(|device| {
            let number = device.strip_prefix("cuda:").unwrap_or("0");
            let of_seen = |seen: &Vec<&str>| {
                let index = number.parse::<usize>().ok()?;
                seen.get(index).map(|&name| name.to_owned())
            };
            seen.as_ref().map_or_else(|| Some(number.to_owned()), of_seen).ok_or_else(|| {
                Error::Study {
                    place: device.clone(),
                    message: format!("{VISIBLE} shows no such device"),
                }
            })
        });
        let visible: Vec<String> = visible.collect::<Result<_, _>>()?;
        Ok(Self {
            name: group.join(" "),
            device: "cuda".to_owned(),
            visible: Some(visible.join(",")),
        })
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
    /// Position of its place.
    slot: usize,
}

struct Crew<'a> {
    fleet: &'a Fleet,
    places: Vec<Place>,
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
                self.fill_devices(stop)?;
            }
            if self.workers.is_empty() && (stopping || self.waiting.is_empty()) {
                return Ok(stopping);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn fill_devices(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        for slot in 0..self.places.len() {
            if self.workers.iter().any(|worker| worker.slot == slot) {
                continue;
            }
            let Some(attempt) = self.waiting.pop_front() else { return Ok(()) };
            let resumes = self.clear_way(&attempt.name, stop)?;
            let child = self.start(&attempt.name, slot, resumes)?;
            let (name, device) = (attempt.name.clone(), self.places[slot].name.clone());
            self.workers.push(Worker { child, attempt, slot });
            self.study.set_state(&name, RunState::Running { device: device.clone() })?;
            (self.observer)(&FleetEvent::Started { name, device, resumes });
        }
        Ok(())
    }

    /// Removes what a run without a checkpoint left behind; whether there is one to go on from. A run that a study before,
    /// which was killed, has left may still be writing its last checkpoint; that is waited for.
    fn clear_way(&self, name: &str, stop: &AtomicBool) -> Result<bool, Error> {
        let folder = self.study.run_folder(name);
        let begun = Instant::now();
        while RunFolder::is_in_use(&folder) {
            if stop.load(Ordering::Relaxed) || begun.elapsed() > PATIENCE {
                // Whoever it is, the run that is started now says so and ends.
                return Ok(true);
            }
            std::thread::sleep(LOOK_EVERY);
        }
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
        let Place { device, visible, .. } = &self.places[slot];
        let (ranks, mut command) = (self.fleet.ranks, Command::new(&self.fleet.program));
        if ranks > 1 {
            command.args(["launch", "--stop-with-parent", "--devices", &ranks.to_string(), "--"]);
        }
        if let Some(visible) = visible {
            command.env(VISIBLE, visible);
        }
        command.arg("train").arg("--config").arg(self.study.config_file(name));
        command.arg("--output-dir").arg(self.study.run_folder(name)).arg("--device").arg(device);
        if ranks == 1 {
            command.arg("--stop-with-parent");
        }
        let alike = self.places.iter().filter(|other| other.device == "cpu").count();
        if device == "cpu" && alike > 1 {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let threads = (cores / (alike * ranks)).max(1);
            command.arg("--set").arg(format!("run.threads={threads}"));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(devices: &[&str], ranks: usize) -> Fleet {
        let devices = devices.iter().map(|&device| device.to_owned()).collect();
        Fleet { program: PathBuf::new(), devices, ranks, retries: 0 }
    }

    fn group(devices: &[&str], seen: Option<&str>) -> Result<Place, Error> {
        let devices: Vec<String> = devices.iter().map(|&device| device.to_owned()).collect();
        Place::of(&devices, seen)
    }

    #[test]
    fn ranks_take_devices_in_groups() {
        let place = |name: &str, visible: &str| {
            let visible = Some(visible.to_owned());
            Place { name: name.to_owned(), device: "cuda".to_owned(), visible }
        };
        assert_eq!(group(&["cuda:0", "cuda:1"], None).unwrap(), place("cuda:0 cuda:1", "0,1"));
        assert_eq!(
            group(&["cuda:2", "cuda:0"], Some("7, 6,5")).unwrap(),
            place("cuda:2 cuda:0", "5,7")
        );
        let error = group(&["cuda:2"], Some("7,6")).unwrap_err().to_string();
        assert_eq!(error, "cuda:2: CUDA_VISIBLE_DEVICES shows no such device");

        let places = |devices: &[&str], ranks| fleet(devices, ranks).places();
        let devices = ["cuda:0", "cuda:1", "cuda:2", "cuda:3"];
        assert_eq!(places(&devices, 2).unwrap().len(), 2);
        assert_eq!(places(&devices, 1).unwrap().len(), 4);
        // All ranks of a run share the processor.
        assert_eq!(places(&["cpu", "cpu"], 3).unwrap().len(), 2);
        for (devices, ranks) in [(&devices[..], 3), (&["cpu", "cuda:0"], 2)] {
            let error = places(devices, ranks).unwrap_err().to_string();
            let expected =
                format!("{ranks} ranks: expected {ranks} CUDA devices or a multiple, found");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
