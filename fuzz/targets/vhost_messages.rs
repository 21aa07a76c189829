//! Feeds any bytes as messages of a VMM with descriptors.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| octavo_fuzz::vhost::messages(bytes));
