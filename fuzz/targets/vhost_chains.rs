//! Feeds any bytes as steps of a guest with its ring.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| octavo_fuzz::vhost::chains(bytes));
