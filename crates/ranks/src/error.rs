//! What goes wrong between ranks, and with which of them.

use std::io;

/// An error of a job.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A variable of the launcher that makes no sense.
    #[error("environment variable {variable}: expected {expected}, found `{found}`")]
    Variable {
        /// Its name.
        variable: String,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// Some variables of a launcher without the others.
    #[error("environment variable {present} is set without {missing}; {hint}")]
    Incomplete {
        /// One that is there.
        present: String,
        /// One that is not.
        missing: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// The port that rank 0 should listen on belongs to another process.
    #[error(
        "rank 0 cannot listen on {address}: {source}; another process may have the port, perhaps another job: choose \
         another MASTER_PORT"
    )]
    PortInUse {
        /// Host and port.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// Rank 0 cannot be reached.
    #[error(
        "rank {rank} did not reach rank 0 at {address} within {waited_s} s: {source}; is it running, and are MASTER_ADDR \
         and MASTER_PORT right and open between the hosts?"
    )]
    Unreachable {
        /// The rank that tried.
        rank: usize,
        /// Host and port.
        address: String,
        /// Seconds of trying.
        waited_s: u64,
        /// What the last attempt said.
        source: io::Error,
    },
    /// Ranks that never came.
    #[error(
        "of {world_size} ranks, {} did not come to {address} within {waited_s} s",
        listed(absent)
    )]
    Absent {
        /// Their numbers.
        absent: Vec<usize>,
        /// Ranks of the job.
        world_size: usize,
        /// Host and port where rank 0 waited.
        address: String,
        /// Seconds of waiting.
        waited_s: u64,
    },
    /// A rank of something else, or one that says what another says.
    #[error("rank {rank} does not belong to this job: {what} is {found} there and {expected} here")]
    Stranger {
        /// What it says to be.
        rank: usize,
        /// What differs.
        what: &'static str,
        /// What rank 0 has.
        expected: String,
        /// What it has.
        found: String,
    },
    /// Rank 0 did not let this rank in.
    #[error("rank 0 refused rank {rank}: {reason}")]
    Refused {
        /// This rank.
        rank: usize,
        /// Why.
        reason: String,
    },
    /// A rank whose process ended, or whose host is gone.
    #[error("rank {rank} ended during {operation}")]
    Ended {
        /// The rank.
        rank: usize,
        /// What the others were doing.
        operation: String,
    },
    /// A rank that does nothing any more.
    #[error("rank {rank} hangs: no sign of progress for {silent_s} s during {operation}")]
    Hangs {
        /// The rank.
        rank: usize,
        /// What the others were doing.
        operation: String,
        /// Seconds without a sign.
        silent_s: u64,
    },
    /// A rank that does something else than this one.
    #[error("ranks are out of step: rank {rank} sent {found} where {expected} was due")]
    OutOfStep {
        /// The rank.
        rank: usize,
        /// What this rank is doing.
        expected: String,
        /// What came.
        found: String,
    },
    /// Work of several devices that failed.
    #[error("rank {rank}: {message}")]
    Device {
        /// The rank that found it.
        rank: usize,
        /// What its device says.
        message: String,
    },
    /// A rank that gave up.
    #[error("rank {rank} stopped the job: {reason}")]
    Aborted {
        /// The rank.
        rank: usize,
        /// Why.
        reason: String,
    },
    /// A socket that cannot be used.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }

    /// Whether the one who started the job must change something, rather than a rank.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Variable { .. } | Self::Incomplete { .. })
    }

    /// Whether another rank said so, which then has said it to everybody.
    #[must_use]
    pub fn was_told(&self) -> bool {
        matches!(self, Self::Aborted { .. } | Self::Refused { .. })
    }
}

fn listed(ranks: &[usize]) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    let numbers: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    format!("{noun} {}", numbers.join(", "))
}
