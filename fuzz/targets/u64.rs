//! Feeds any bytes to the reader of the format `u64`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use octavo_sim::trace::Format;

fuzz_target!(|bytes: &[u8]| octavo_fuzz::read(Format::U64, bytes));
