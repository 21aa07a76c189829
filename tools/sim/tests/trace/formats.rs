//! Every format, from hand-written samples with hand-computed pages.

use octavo_sim::trace::{Format, Options};

use crate::pages;

const V: u64 = 1 << 40;

fn sample(format: Format, text: impl AsRef<[u8]>, expected: &[u64]) {
    assert_eq!(pages(format, text, &Options::default()).unwrap(), expected, "{}", format.name());
}

#[test]
fn u64_is_page_numbers_of_any_size() {
    let numbers = [0, 1, u64::MAX, 1 << 63, 7];
    let bytes: Vec<u8> = numbers.iter().flat_map(|number: &u64| number.to_le_bytes()).collect();
    sample(Format::U64, bytes, &numbers);
}

#[test]
fn oracle_general_is_the_object_of_each_record() {
    let record = |time: u32, object: u64, bytes: u32, next: i64| {
        [&time.to_le_bytes()[..], &object.to_le_bytes(), &bytes.to_le_bytes(), &next.to_le_bytes()].concat()
    };
    let bytes = [record(1, 42, 512, 3), record(1, u64::MAX, 1 << 20, -1), record(9, 42, 512, -1)].concat();
    sample(Format::OracleGeneral, bytes, &[42, u64::MAX, 42]);
}

#[test]
fn an_arc_line_is_consecutive_blocks() {
    let text = "266 3 0 0\n  10\t1 0 1\r\n\n7 0 0 2\n18446744073709551614 2 0 3";
    sample(Format::Arc, text, &[266, 267, 268, 10, u64::MAX - 1, u64::MAX]);
}

#[test]
fn a_lirs_line_is_a_block_unless_it_begins_with_a_star() {
    sample(Format::Lirs, "12\n*\n5\r\n* phase 2\n\n12", &[12, 5, 12]);
}

#[test]
fn spc_keeps_asus_apart_and_touches_every_page_of_a_request() {
    // Sector 7 is bytes 3584 to 4096, the last of page 0; two sectors more than that touch page 1.
    let text = "0,7,512,W,0.5\n0,7,1024,r,0.6\n1,7,512,R,0.7,5,6\n2,16,8192,w,1\n0,1,0,r,2\n";
    sample(Format::Spc, text, &[0, 0, 1, V, 2 * V + 2, 2 * V + 3]);
}

#[test]
fn msr_numbers_disks_of_hosts_in_order_of_appearance() {
    let text = "\
Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime
128166372003061629,hm,1,Read,383496192,32768,413
128166372016382155,hm,0,Write,4095,2,421
128166372026382245,prn,1,Read,0,4096,1
128166372026382245,hm,1,read,383500287,1,1
";
    // 383496192 = 93627 x 4096: eight pages. The last line's byte is the last of the first of them.
    let first = (0..8).map(|page| 93_627 + page);
    let expected: Vec<u64> = first.chain([V, V + 1, 2 * V, 93_627]).collect();
    sample(Format::Msr, text, &expected);
}

#[test]
fn tencent_counts_in_sectors() {
    // Sectors 1 to 16: the last seven of page 0, page 1, and the first of page 2.
    let text = "1538323200,1,16,0,1283\n1538323201,8,8,1,0\n";
    sample(Format::Tencent, text, &[1283 * V, 1283 * V + 1, 1283 * V + 2, 1]);
}

#[test]
fn alibaba_counts_in_bytes() {
    let text = "419,W,8792731648,16384,1577808144360767\n0,R,4096,4096,1577808144360767\n";
    // 8792731648 = 2146663 x 4096.
    let first = 419 * V + 2_146_663;
    sample(Format::Alibaba, text, &[first, first + 1, first + 2, first + 3, 1]);
}

#[test]
fn blkparse_counts_queued_requests() {
    let text = "\
Input file sda.blktrace.0 added
  8,0    3        1     0.000000000   697  A   W 223490 + 8 <- (8,2) 21
  8,0    3        2     0.000001829   697  Q   W 223488 + 16 [kworker/3:1 a b]
  8,0    3        3     0.000002197   697  G   W 223488 + 16 [kworker/3:1 a b]
  8,0    3        0     0.000002500     0  m   N cfq697S / alloced
  8,0    3        4     0.000003000   697  P   N [kjournald]
  8,0    3        5     0.000005000   697  D   W 223488 + 16 [kjournald]
  8,16   1        6     0.000006000   100  Q  RA 8 + 8 [cp]
  8,0    3        7     0.000007000   697  Q FWS [fsync]
  8,0    3        8     0.000008000   697  Q FWFSM 0 + 1 [fsync]
  8,0    3        9     0.000009000   697  Q  DS 0 + 8388608 [fstrim]
  8,0    3       10     0.010000000     0  C   W 223488 + 16 [0]
  8,0    3       11     0.011000000     0  U   N [kjournald] 1
CPU3 (8,0):
 Reads Queued:           0,        0KiB\t Writes Queued:           1,        4KiB

Total (8,0):
 Reads Queued:           0,        0KiB\t Writes Queued:           1,        4KiB
Throughput (R/W): 0KiB/s / 360KiB/s
Events (8,0): 11 entries
";
    // 223488 = 27936 x 8: two pages. Each device is a volume.
    sample(Format::Blkparse, text, &[27_936, 27_937, V + 1, 0]);
}

#[test]
fn blkparse_without_queued_requests_counts_issued_or_completed_ones() {
    let line = |action: &str, sector: u64| format!("  8,0 0 1 0.0 1 {action} R {sector} + 8 [x]\n");
    sample(Format::Blkparse, line("C", 8) + &line("D", 16) + &line("C", 16), &[2]);
    sample(Format::Blkparse, line("C", 8) + &line("I", 16) + &line("C", 16), &[1, 2]);
    // Completions of requests from before the recording come before the first queued request.
    sample(Format::Blkparse, line("C", 8) + &line("D", 16) + &line("Q", 24) + &line("D", 24), &[3]);
    // The reader decides at the latest at UNDECIDED_MAX events, and loses none of them.
    let many: String = (0..5000).map(|page| line("C", 8 * page)).collect();
    sample(Format::Blkparse, many + &line("Q", 0), &(0..5000).collect::<Vec<u64>>());
}

#[test]
fn fio_logs_of_both_versions_are_reads_and_writes_of_files() {
    let second = "\
fio version 2 iolog
/dev/sda add
/dev/sda open
/dev/sda read 0 4096
/tmp/b write 4095 2
/dev/sda wait 1000
/dev/sda trim 0 1048576
/dev/sda datasync 0 0
/dev/sda read 8192 8192
/dev/sda close
";
    sample(Format::Fio, second, &[0, V, V + 1, 2, 3]);
    let third = "\
fio version 3 iolog
0 /dev/sda add
0 /dev/sda open
2 /dev/sda read 4096 4096
15 /dev/sda sync 0 0
20 /dev/sda write 0 1
21 /dev/sda close
";
    sample(Format::Fio, third, &[1, 0]);
}

/// fio writes names as they are. A name may have blanks, also at its end, and words that look like
/// actions and numbers.
#[test]
fn fio_names_may_have_blanks_and_every_kind_of_sync_is_no_access() {
    let text = "\
fio version 3 iolog
0 /tmp/da ta add
0 /tmp/da ta open
1 /tmp/da ta read 4096 4096
2 /tmp/da ta  read 0 4096
3 /tmp/read 0 1 write 8192 1
4 /tmp/da ta sync 0 0
5 /tmp/da ta sync_file_range 491520 0
6 /tmp/da ta syncfs 0 0
7 /tmp/da ta read 0 1
8 /tmp/da ta close
";
    sample(Format::Fio, text, &[1, V, 2 * V + 2, 0]);
}

/// A line of each format with a header or without, and the pages that it stands for.
const TEXTS: [(Format, &str, &[u64]); 8] = [
    (Format::Arc, "1 2 0 0", &[1, 2]),
    (Format::Lirs, "7", &[7]),
    (Format::Spc, "0,8,512,r,0", &[1]),
    (Format::Msr, "1,a,0,Read,4096,512,1", &[1]),
    (Format::Tencent, "1,8,8,0,0", &[1]),
    (Format::Alibaba, "0,R,4096,4096,1", &[1]),
    (Format::Blkparse, "8,0 0 1 0.0 1 Q R 8 + 8 [x]", &[1]),
    (Format::Fio, "fio version 2 iolog\n/a read 4096 1", &[1]),
];

#[test]
fn a_byte_order_mark_is_no_part_of_a_line_in_any_text_format() {
    for (format, text, expected) in TEXTS {
        sample(format, format!("\u{feff}{text}\n"), expected);
        let joined = format!("\u{feff}{text}\n\u{feff}\n\u{feff}{text}");
        sample(format, joined, &expected.repeat(2));
        let utf_16: Vec<u8> = format!("\u{feff}{text}\n").encode_utf16().flat_map(u16::to_le_bytes).collect();
        for skip_bad in [false, true] {
            let options = Options { skip_bad, ..Options::default() };
            let said = pages(format, &utf_16, &options).unwrap_err().to_string();
            assert!(said.starts_with("sample:1: the text is UTF-16"), "{said}");
        }
    }
}

#[test]
fn lines_end_with_any_of_the_three_line_ends() {
    for (format, text, expected) in TEXTS {
        for end in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', end);
            sample(format, format!("{text}{end}{end}{text}{end}"), &expected.repeat(2));
        }
    }
    let said = pages(Format::Lirs, "1\r\n2\r3\rx\n", &Options::default()).unwrap_err().to_string();
    assert!(said.starts_with("sample:4: "), "{said}");
}

#[test]
fn requests_are_divided_into_pages_of_the_given_length() {
    let options = Options { page_bytes: 65_536, ..Options::default() };
    assert_eq!(pages(Format::Alibaba, "0,R,65535,2,1\n", &options).unwrap(), [0, 1]);
    let options = Options { page_bytes: 512, ..Options::default() };
    assert_eq!(pages(Format::Tencent, "1,3,2,0,0\n", &options).unwrap(), [3, 4]);
    // Block numbers are pages, however long.
    assert_eq!(pages(Format::Arc, "3 2 0 0\n", &options).unwrap(), [3, 4]);
}

#[test]
fn an_empty_trace_has_no_pages_in_any_format_without_a_header() {
    let without_header = || Format::all().filter(|format| ![Format::Octr, Format::Csv].contains(format));
    without_header().for_each(|format| sample(format, "", &[]));
    without_header().skip(2).for_each(|format| sample(format, "\n \n\r\n", &[]));
}
