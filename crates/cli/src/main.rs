//! The `packed-adamw` command.

fn main() {}
