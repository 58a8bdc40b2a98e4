//! `launch`: one process for each device of this host, as one job.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

use crate::args::Launch;
use crate::output::note;
use crate::ranks::{LAUNCHED, Quiet};
use crate::{Done, STOPPED, signals};

/// Time between looks at the processes.
const LOOK: Duration = Duration::from_millis(20);

/// How long the others may take to end after one has failed; they find out by themselves. With the silence after which a
/// rank is taken to hang, all have ended within 30 s.
const PATIENCE: Duration = Duration::from_secs(5);

/// The processes of a job; those that are left end with it.
struct Job {
    /// By rank; none once it has ended.
    running: Vec<Option<Child>>,
}

pub fn run(args: &Launch) -> Result<Done> {
    if args.stop_with_parent {
        trainer::study::stop_with_parent();
    }
    let stop = signals::stop_flag()?;
    let mut job = Job::start(args)?;
    let (mut failed, mut deadline, mut told) = (None, None, false);
    while job.is_running() {
        if stop.load(Ordering::Relaxed) && !told {
            told = true;
            job.ask_to_stop();
        }
        for (rank, status) in job.ended()? {
            if !status.success() && failed.is_none() {
                failed = Some(code(rank, status, told));
                deadline = Some(Instant::now() + PATIENCE);
            }
        }
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            note("ranks that did not end by themselves are ended now");
            break;
        }
        std::thread::sleep(LOOK);
    }
    match failed {
        None => Ok(Done::Finished),
        Some(code) => Err(anyhow!(Quiet(code))),
    }
}

impl Job {
    fn start(args: &Launch) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let port = ranks::free_port().context("cannot find a free port")?;
        let mut job = Self { running: Vec::new() };
        for rank in 0..args.devices {
            let [rank_text, size] = [rank, args.devices].map(|number| number.to_string());
            let child = Command::new(&program)
                .args(&args.command)
                .envs([("RANK", &rank_text), ("LOCAL_RANK", &rank_text)])
                .envs([("WORLD_SIZE", &size), ("LOCAL_WORLD_SIZE", &size)])
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string())
                .env(LAUNCHED, "1")
                .env_remove("TORCHELASTIC_USE_AGENT_STORE")
                .stdin(Stdio::null())
                .spawn();
            let child = child.with_context(|| format!("cannot start rank {rank}"))?;
            job.running.push(Some(child));
        }
        Ok(job)
    }

    fn is_running(&self) -> bool {
        self.running.iter().any(Option::is_some)
    }

    /// Ranks that have ended since the last call, and how.
    fn ended(&mut self) -> Result<Vec<(usize, ExitStatus)>> {
        let mut ended = Vec::new();
        for (rank, child) in self.running.iter_mut().enumerate() {
            let Some(running) = child else { continue };
            if let Some(status) = running.try_wait().context("cannot wait for a rank")? {
                ended.push((rank, status));
                *child = None;
            }
        }
        Ok(ended)
    }

    /// Lets every rank know; they agree on where to stop.
    fn ask_to_stop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            ask_to_stop(child);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            // One that has ended meanwhile needs no end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(unix)]
fn ask_to_stop(child: &mut Child) {
    use rustix::process::{Pid, Signal, kill_process};
    // One that has ended meanwhile has stopped.
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
}

#[cfg(not(unix))]
fn ask_to_stop(child: &mut Child) {
    let _ = child.kill();
}

/// The exit code of a rank that did not succeed; one that a signal ended is named, since it could not speak. One that was
/// `told` to stop before it watched for signals has stopped: there was nothing to write yet.
fn code(rank: usize, status: ExitStatus, told: bool) -> u8 {
    match status.code() {
        Some(code) => u8::try_from(code).unwrap_or(1),
        None if told && was_asked(status) => {
            note(&format!("rank {rank} stopped before the run began; nothing was written"));
            STOPPED
        }
        None => {
            note(&format!("rank {rank}: {status}"));
            1
        }
    }
}

/// Whether what ended a process is what [`ask_to_stop`] sends.
#[cfg(unix)]
fn was_asked(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    status.signal() == Some(rustix::process::Signal::TERM.as_raw())
}

#[cfg(not(unix))]
fn was_asked(_: ExitStatus) -> bool {
    true
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_stops_before_the_run_begins_has_stopped() {
        let ended_by = |end: fn(&mut Child)| {
            let mut child = Command::new("sleep").arg("600").spawn().unwrap();
            end(&mut child);
            child.wait().unwrap()
        };
        let asked = ended_by(ask_to_stop);
        assert_eq!(code(0, asked, true), STOPPED);
        assert_eq!(code(0, asked, false), 1, "nobody asked for it");
        assert_eq!(code(0, ended_by(|child| child.kill().unwrap()), true), 1, "killed");
    }
}
