//! Where a process stands in its job, as the variables of its launcher say.
//!
//! | launcher | rank, world size | on its host | master |
//! |---|---|---|---|
//! | torchrun, `packed-adamw launch`, by hand | `RANK`, `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | `MASTER_ADDR`, `MASTER_PORT` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK`, `_LOCAL_SIZE` | the same; this host where all ranks are |
//! | Slurm's srun | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` | `SLURM_LOCALID` | the same; the first host of the step |
//!
//! They are looked at in this order. A batch script of Slurm runs once, whatever number of tasks it asked for, and has
//! no `SLURM_STEP_NUM_TASKS`.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;

/// The port where no variable names one.
const DEFAULT_PORT: u16 = 29_500;
/// Ports of jobs by a number of theirs, so that two on a host seldom meet; below those that systems give to anybody.
const JOB_PORTS: std::ops::Range<u16> = 20_000..29_000;

/// A rank of a job, and where rank 0 is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of this rank.
    pub rank: usize,
    /// How many there are.
    pub world_size: usize,
    /// Its number among those of its host.
    pub local_rank: usize,
    /// How many its host has, where that is known.
    pub local_world_size: Option<usize>,
    /// The host of rank 0.
    pub master_host: String,
    /// The port that it listens on.
    pub master_port: u16,
}

/// The variables of one launcher.
struct Names {
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    local_world_size: &'static str,
}

const BY_HAND: Names = Names {
    rank: "RANK",
    world_size: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_world_size: "LOCAL_WORLD_SIZE",
};
const OPEN_MPI: Names = Names {
    rank: "OMPI_COMM_WORLD_RANK",
    world_size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_world_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};
const SLURM: Names = Names {
    rank: "SLURM_PROCID",
    world_size: "SLURM_STEP_NUM_TASKS",
    local_rank: "SLURM_LOCALID",
    local_world_size: "SLURM_NTASKS_PER_NODE",
};

/// The variables of a process.
struct Variables<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
}

impl Place {
    /// Where this process stands; none if it is alone.
    ///
    /// # Errors
    ///
    /// Variables that contradict each other, are no numbers, or of which some are missing.
    pub fn of_process() -> Result<Option<Self>, Error> {
        Self::from_variables(&|name| std::env::var(name).ok())
    }

    /// As [`Place::of_process`], for variables as `get` has them.
    ///
    /// # Errors
    ///
    /// As for [`Place::of_process`].
    pub fn from_variables(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, Error> {
        let variables = Variables { get };
        let has = |name: &str| variables.text(name).is_some();
        let incomplete = |present: &str, missing| {
            let hint = "set all of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every process, or none";
            Err(Error::Incomplete { present: present.to_owned(), missing, hint })
        };
        match (has("RANK"), has("WORLD_SIZE")) {
            (true, false) => return incomplete("RANK", "WORLD_SIZE"),
            (false, true) => return incomplete("WORLD_SIZE", "RANK"),
            (true, true) => {
                let Some(place) = variables.place(&BY_HAND)? else { return Ok(None) };
                if !has("MASTER_ADDR") {
                    return incomplete("RANK", "MASTER_ADDR");
                }
                if !has("MASTER_PORT") {
                    return incomplete("RANK", "MASTER_PORT");
                }
                return variables.with_master(place, None, DEFAULT_PORT).map(Some);
            }
            (false, false) => {}
        }
        if has(OPEN_MPI.world_size) {
            let Some(place) = variables.place(&OPEN_MPI)? else { return Ok(None) };
            let one_host = place.local_world_size == Some(place.world_size);
            let host = one_host.then(|| "127.0.0.1".to_owned());
            return variables.with_master(place, host, DEFAULT_PORT).map(Some);
        }
        if has(SLURM.world_size) {
            let Some(place) = variables.place(&SLURM)? else { return Ok(None) };
            let nodes = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"];
            let nodes = nodes.into_iter().find_map(|name| variables.text(name));
            let host = nodes.map(|nodes| first_host(&nodes));
            let job = variables.number::<u64>("SLURM_JOB_ID")?.unwrap_or(0);
            return variables.with_master(place, host, job_port(job)).map(Some);
        }
        Ok(None)
    }

    /// Host and port of rank 0.
    #[must_use]
    pub fn master(&self) -> String {
        match self.master_host.contains(':') {
            true => format!("[{}]:{}", self.master_host, self.master_port),
            false => format!("{}:{}", self.master_host, self.master_port),
        }
    }
}

impl Variables<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.get)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Error> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let wrong = || Error::Variable {
            variable: name.to_owned(),
            expected: "a whole number".into(),
            found: text.clone(),
        };
        text.parse().map(Some).map_err(|_| wrong())
    }

    /// The rank of one launcher, its master still open; none in a world of one.
    fn place(&self, names: &Names) -> Result<Option<Place>, Error> {
        let needed = |name: &'static str, present: &str| {
            let hint = "a launcher sets both";
            self.number::<usize>(name)?.ok_or_else(|| Error::Incomplete {
                present: present.to_owned(),
                missing: name,
                hint,
            })
        };
        let world_size = needed(names.world_size, names.rank)?;
        let rank = needed(names.rank, names.world_size)?;
        if world_size == 0 || rank >= world_size {
            return Err(Error::Variable {
                variable: names.rank.to_owned(),
                expected: format!("less than {}, which is {world_size}", names.world_size),
                found: rank.to_string(),
            });
        }
        if world_size == 1 {
            return Ok(None);
        }
        let local_world_size = match names.local_world_size {
            // Some launchers write it as a list, such as `4(x2)`, where the hosts differ; then it is not known.
            name if self.text(name).is_some_and(|text| text.parse::<usize>().is_err()) => None,
            name => self.number(name)?,
        };
        Ok(Some(Place {
            rank,
            world_size,
            local_rank: self.number(names.local_rank)?.unwrap_or(rank),
            local_world_size,
            master_host: String::new(),
            master_port: 0,
        }))
    }

    /// The master that variables name, or else `host` and `port`.
    fn with_master(&self, place: Place, host: Option<String>, port: u16) -> Result<Place, Error> {
        let Some(master_host) = self.text("MASTER_ADDR").or(host) else {
            return Err(Error::Incomplete {
                present: OPEN_MPI.rank.to_owned(),
                missing: "MASTER_ADDR",
                hint: "with several hosts, give it that of rank 0 (mpirun -x MASTER_ADDR=HOST)",
            });
        };
        let named: Option<u16> = self.number("MASTER_PORT")?;
        let mut master_port = named.unwrap_or(port);
        // The agent of torchrun listens on the port itself; another one follows from it then.
        if self.text("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|text| text == "True") {
            master_port = job_port(master_port.into());
        }
        Ok(Place { master_host, master_port, ..place })
    }
}

/// A port of this host for a job that is about to be started here: nobody listens on it, nor on the one after it.
///
/// Rank 0 takes it some time later, and until then it is free for all. But no system gives away a port of this range to
/// whoever asks for any, other callers in this process get other ones, and other processes begin to look elsewhere. So none of
/// them comes in between.
///
/// # Errors
///
/// If all are taken, or this host has no sockets.
pub fn free_port() -> io::Result<u16> {
    /// Ports that a process takes in turn before it comes to those of the process that was started after it.
    const APART: u64 = 37;
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    let pairs = u64::from(JOB_PORTS.end - JOB_PORTS.start) / 2;
    for _ in 0..pairs {
        let number = u64::from(std::process::id()) * APART + TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = job_port(number % pairs * 2);
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .and_then(|own| Ok((own, TcpListener::bind((Ipv4Addr::LOCALHOST, port + 1))?)));
        match bound {
            Ok(_) => return Ok(port),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    let message = format!("expected a free port in {JOB_PORTS:?}, found none");
    Err(io::Error::new(ErrorKind::AddrInUse, message))
}

fn job_port(number: u64) -> u16 {
    let ports = u64::from(JOB_PORTS.end - JOB_PORTS.start);
    JOB_PORTS.start + (number % ports) as u16
}

/// The first host of a list as Slurm writes it: `a1` of `a[1-3,7],b2`.
fn first_host(list: &str) -> String {
    let Some((prefix, rest)) = list.split_once('[') else {
        return list.split(',').next().unwrap_or(list).to_owned();
    };
    if let Some((host, _)) = prefix.split_once(',') {
        return host.to_owned();
    }
    let (numbers, behind) = rest.split_once(']').unwrap_or((rest, ""));
    let first = numbers.split([',', '-']).next().unwrap_or(numbers);
    let suffix = behind.split(',').next().unwrap_or("");
    format!("{prefix}{first}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list() {
        for (list, host) in [
            ("n1", "n1"),
            ("n1,n2", "n1"),
            ("n[1-3,7]", "n1"),
            ("n[001-003]-ib,m2", "n001-ib"),
            ("a,n[1-3]", "a"),
            ("gpu-[07,09]", "gpu-07"),
        ] {
            assert_eq!(first_host(list), host, "{list}");
        }
    }
}
