//! Feeds any bytes as a recording: as its blocks, and as the events in them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| octavo_fuzz::recording(bytes));
