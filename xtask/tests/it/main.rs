//! Tests of the tasks as a user calls them: the built program, on clones of this repository.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "a skipped test says so")]

mod clones;
mod crates;
mod release;
