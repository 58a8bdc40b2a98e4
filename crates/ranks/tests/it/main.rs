//! Tests of jobs: ranks as threads and as processes of this machine.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod job;
mod joining;
mod operations;
mod places;
