//! Feeds any bytes that follow the beginning of a compressed file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use octavo_sim::trace::Format;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let beginning: &[u8] =
        if kind % 2 == 0 { &[0x28, 0xb5, 0x2f, 0xfd] } else { &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3] };
    octavo_fuzz::read(Format::Lirs, &[beginning, rest].concat());
});
