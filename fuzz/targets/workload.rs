//! Parses any text as the description of a workload.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| octavo_fuzz::draw(text));
