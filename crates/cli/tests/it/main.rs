//! Tests of the command as a user calls it: the built program in a process of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod campaigns;
mod help;
mod inspect;
mod manners;
mod matrix;
mod prepare;
mod program;
mod ranks;
mod recipes;
mod signals;
mod studies;
mod watch;
mod way;
