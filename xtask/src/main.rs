//! Releases, and the invariants of the tree as tests.

fn main() {}
