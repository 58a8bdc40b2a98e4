//! Processes that work together.
//!
//! A job is some processes, its ranks, numbered from 0. Each finds out [where it stands](Place) from the variables
//! that its launcher sets, joins the others, and from then on they do the same operations in the same order: sum
//! arrays, share bytes, wait for each other. Sums have one fixed order, so the same job gives the same bits at every
//! run. A rank that dies, hangs or fails is named to all others, with the operation that missed it.
//!
//! ```
//! use ranks::{Alone, Communicator};
//!
//! let mut alone = Alone::default();
//! let mut values = [1.0, 2.0];
//! alone.all_reduce(&mut values)?;
//! assert_eq!(values, [1.0, 2.0]);
//! # Ok::<(), ranks::Error>(())
//! ```
//!
//! | file | what it holds |
//! |---|---|
//! | `place` | rank, world size and master of a process, from torchrun's, Open MPI's or Slurm's variables |
//! | `communicator` | the operations, and the communicator of a process that is alone |
//! | `tree` | sums whose order does not depend on who adds what |
//! | `tcp` | the operations over sockets between processes of one host or of several |
//! | `rendezvous` | how those find each other |
//! | `link`, `pulse` | frames between two ranks; signs of life |
//!
//! What the crate does not do: it starts no process and knows nothing of what is summed. Whoever reaches the master's
//! port can join a job, so it is for networks whose members trust each other.

mod place;

mod communicator;
mod tree;

mod link;
mod pulse;
mod rendezvous;
mod tcp;

mod error;

pub use communicator::{Alone, Communicator, part_of};
pub use error::Error;
pub use place::{Place, free_port};
pub use pulse::{Busy, Pulse, Waiting};
pub use tcp::{Limits, Tcp};
pub use tree::{Node, TreeSum, nodes_of};
