//! Replays any events through a small table.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| octavo_fuzz::replay(bytes));
