//! The errors for malformed lines and records. Skipping a malformed line loses no other line.

use std::io::{self, Cursor, Read};

use octavo_sim::trace::{self, Format, LINE_BYTES_MAX, Options};

use crate::{all, lenient, pages, source};

/// Returns the error of a text; its beginning is the place of the error.
fn error(format: Format, text: impl AsRef<[u8]>) -> String {
    pages(format, text, &Options::default()).unwrap_err().to_string()
}

/// A good line of each text format.
const GOOD: [(Format, &str); 8] = [
    (Format::Arc, "1 2 0 0"),
    (Format::Lirs, "1"),
    (Format::Spc, "0,1,512,r,0"),
    (Format::Msr, "1,a,0,Read,0,512,1"),
    (Format::Tencent, "1,0,8,0,3"),
    (Format::Alibaba, "3,R,0,4096,1"),
    (Format::Blkparse, "8,0 0 1 0.0 1 Q R 8 + 8 [x]"),
    (Format::Fio, "fio version 2 iolog"),
];

/// Malformed lines, each with a part of its error.
const BAD: &[(Format, &str, &str)] = &[
    (Format::Arc, "1 2 0", "no number of the request"),
    (Format::Arc, "1 2 0 0 0", "unexpected fifth field \"0\""),
    (Format::Arc, "x 2 0 0", "\"x\" is not a whole number"),
    (Format::Arc, "-1 2 0 0", "\"-1\" is not a whole number"),
    (Format::Arc, "18446744073709551616 1 0 0", "not below 2^64"),
    (Format::Arc, "18446744073709551615 2 0 0", "past block 2^64"),
    (Format::Arc, "0 1152921504606846976 0 0", "a request of 1152921504606846976 pages"),
    (Format::Lirs, "1 2", "\"1 2\" is not a whole number"),
    (Format::Lirs, "0x10", "\"0x10\" is not a whole number"),
    (Format::Spc, "0,1,512,r", "only 4 fields of 5"),
    (Format::Spc, "0,1,512,x,0", "\"x\" is neither r nor w"),
    (Format::Spc, "16777216,1,512,r,0", "volume 16777216"),
    (Format::Spc, "0,18446744073709551615,512,r,0", "past 2^64 bytes"),
    (Format::Spc, "0,36028797018963967,512,r,0", "past page 2^40"),
    (Format::Spc, "0,0,1152921504606846976,r,0", "past page 2^40"),
    (Format::Spc, "0,0,1099511627776,r,0", "a request of 268435456 pages"),
    (Format::Msr, "1,a,0,Read,0,512", "only 6 fields of 7"),
    (Format::Msr, "1,a,0,Read,0,512,1,1", "more than 7 fields"),
    (Format::Msr, "1,a,0,Look,0,512,1", "\"Look\" is neither Read nor Write"),
    (Format::Msr, "1,a,0,Read,18446744073709551615,2,1", "past 2^64 bytes"),
    (Format::Tencent, "1,0,8,0", "only 4 fields of 5"),
    (Format::Tencent, "1,0,8,2,3", "\"2\" is neither 0 nor 1"),
    (Format::Tencent, "1,0,36028797018963968,0,3", "sector 36028797018963968 lies past 2^64 bytes"),
    (Format::Alibaba, "3,Q,0,4096,1", "\"Q\" is neither R nor W"),
    (Format::Alibaba, "3,R,0,,1", "\"\" is not a whole number"),
    (Format::Blkparse, "Some text", "\"Some text\" is not an event of a device"),
    (Format::Blkparse, "8,0 0", "the event has no sequence number"),
    (Format::Blkparse, "8,0 0 1 0.0 1 Q R", "the event has no sector"),
    (Format::Blkparse, "8,0 0 1 0.0 1 Q R 8 +", "the event has no count of sectors"),
    (Format::Blkparse, "8,0 0 1 0.0 1 Q R 8 / 8 [x]", "expected \"+\", found \"/\""),
    (Format::Blkparse, "8,0 0 1 0.0 1 Q r 8 + 8 [x]", "\"r\" is not a kind of request"),
    (Format::Fio, "/dev/sda", "the line has no action"),
    (Format::Fio, "/dev/sda read 0", "the line has no length"),
    (Format::Fio, "/dev/sda read", "the line has no offset"),
    (Format::Fio, "read 0 1", "the line has no file"),
    (Format::Fio, "/dev/sda read 0 18446744073709551616", "not below 2^64"),
    (Format::Fio, "/dev/sda erase 0 1", "\"erase\" is not an action"),
];

#[test]
fn the_error_for_a_malformed_line_has_its_number_and_the_reason() {
    for (format, good) in GOOD {
        for (_, bad, expected) in BAD.iter().filter(|(of, ..)| *of == format) {
            let said = error(format, format!("{good}\n\n{bad}\n{good}\n"));
            let is_right = said.starts_with("sample:3: ") && said.contains(expected);
            assert!(is_right, "{}: {bad}: {said}", format.name());
        }
    }
    let said = error(Format::Fio, "fio version 3 iolog\n/dev/sda read 0 1\n");
    assert_eq!(said, "sample:2: \"/dev/sda\" is not a whole number");
    let said = error(Format::Fio, "rw, 0, 4096\n");
    assert!(
        said.starts_with("sample:1: expected \"fio version 2 iolog\"")
            && said.ends_with("found \"rw, 0, 4096\""),
        "{said}"
    );
}

#[test]
fn skipping_a_malformed_line_loses_no_other_line() {
    for (format, good) in GOOD {
        let bad: Vec<&str> = BAD.iter().filter(|(of, ..)| *of == format).map(|(_, bad, _)| *bad).collect();
        let text: String = bad.iter().map(|bad| format!("{good}\n{bad}\n")).collect();
        let mut source = source(format, text, &lenient());
        let read = all(source.as_mut()).unwrap();
        let expected = pages(format, format!("{good}\n").repeat(bad.len()), &lenient()).unwrap();
        assert_eq!(read, expected, "{}", format.name());
        assert_eq!(source.skipped(), bad.len() as u64, "{}", format.name());
    }
}

#[test]
fn a_file_that_ends_inside_a_record_is_an_error() {
    let said = error(Format::U64, [7; 19]);
    assert_eq!(said, "sample: record 3: the file ends after 3 of its 8 bytes");
    let said = error(Format::OracleGeneral, [7; 23]);
    assert_eq!(said, "sample: record 1: the file ends after 23 of its 24 bytes");
    let mut source = source(Format::U64, [0; 19], &lenient());
    assert_eq!(all(source.as_mut()).unwrap(), [0, 0]);
    assert_eq!(source.skipped(), 1);
}

#[test]
fn pages_before_an_error_are_yielded_and_none_after() {
    let mut source = source(Format::Lirs, "1\n2\nx\n3\n", &Options::default());
    let mut read = Vec::new();
    assert_eq!(source.next(&mut read).unwrap_err().to_string(), "sample:3: \"x\" is not a whole number");
    assert_eq!(read, [1, 2]);
    assert_eq!(source.next(&mut read), Ok(()));
    assert_eq!(read, [1, 2]);
}

#[test]
fn a_line_longer_than_the_limit_is_an_error_or_skipped() {
    for bytes in [LINE_BYTES_MAX, LINE_BYTES_MAX + 1, 40 * LINE_BYTES_MAX] {
        for end in ["\n", ""] {
            let text = format!("1\n{}{end}", "2".repeat(bytes));
            let said = error(Format::Lirs, &text);
            assert_eq!(said, format!("sample:2: the line is longer than {LINE_BYTES_MAX} bytes"), "{bytes}");
            let text = format!("{text}\n3\n");
            assert_eq!(pages(Format::Lirs, text, &lenient()).unwrap(), [1, 3], "{bytes}");
        }
    }
    // A line one byte shorter is read; here it is a number that is too large.
    assert!(error(Format::Lirs, "2".repeat(LINE_BYTES_MAX - 1) + "\n").contains("not below 2^64"));
}

#[test]
fn the_memory_for_names_of_volumes_is_bounded() {
    let line = |file: u64| format!("{file:08000} read 0 1\n");
    let text: String = (0..2500).map(line).collect();
    let said = error(Format::Fio, format!("fio version 2 iolog\n{text}"));
    assert!(said.starts_with("sample:2082: ") && said.contains("2080 volumes"), "{said}");
}

/// Yields some bytes, and then fails.
struct Failing(Cursor<&'static str>);

impl Read for Failing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer)? {
            0 => Err(io::Error::other("the disk is gone")),
            count => Ok(count),
        }
    }
}

#[test]
fn a_read_error_is_an_error_even_if_malformed_lines_are_skipped() {
    let options = lenient();
    let reader = Failing(Cursor::new("100000\n200000\n3"));
    let mut source = trace::read(Format::Lirs, "sample", reader, &options).unwrap();
    assert_eq!(all(source.as_mut()).unwrap_err().to_string(), "sample:3: the disk is gone");
    let reader = Failing(Cursor::new("12345678abcd"));
    let mut source = trace::read(Format::U64, "sample", reader, &options).unwrap();
    assert_eq!(all(source.as_mut()).unwrap_err().to_string(), "sample: record 2: the disk is gone");
    let reader = Failing(Cursor::new("1"));
    let said = trace::read(Format::U64, "sample", reader, &options).err().unwrap().to_string();
    assert_eq!(said, "sample: the disk is gone");
}

/// Yields one byte a time, so that every line's end is cut everywhere.
struct Dripping(Cursor<&'static [u8]>);

impl Read for Dripping {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.len().min(1);
        self.0.read(&mut buffer[..room])
    }
}

#[test]
fn line_ends_may_lie_across_the_borders_of_reads() {
    let reader = Dripping(Cursor::new(b"\xef\xbb\xbf1\r\n2\r\r\n3\n4\rx"));
    let mut source = trace::read(Format::Lirs, "sample", reader, &Options::default()).unwrap();
    let mut read = Vec::new();
    let said = source.next(&mut read).unwrap_err().to_string();
    assert_eq!(
        (read.as_slice(), said.as_str()),
        (&[1, 2, 3, 4][..], "sample:6: \"x\" is not a whole number")
    );
    // A line that fills the whole buffer and ends with a carriage return at its last byte.
    for bytes in [1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20] {
        let text = format!("{}\r\n3\r\n", "2".repeat(bytes - 1));
        assert_eq!(pages(Format::Lirs, text, &lenient()).unwrap(), [3], "{bytes}");
    }
}

#[test]
fn invalid_page_lengths_are_refused() {
    for page_bytes in [0, 1, 256, 4095, 6144, 32 << 20, u64::MAX] {
        let options = Options { page_bytes, ..Options::default() };
        let said = pages(Format::Lirs, "", &options).unwrap_err().to_string();
        assert!(said.starts_with(&format!("pages of {page_bytes} bytes")), "{said}");
    }
}
