//! The corpus contract.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tape::contract::Contract;

fuzz_target!(|bytes: &[u8]| {
    let _ = Contract::load(&fuzz::file("contract.json", bytes));
});
