//! Files: names, compression, progress, and traces much larger than the memory that reads them.

use std::io::{self, Cursor, Read, Write};
use std::path::Path;

use octavo_sim::trace::{self, Format, Options};
use octavo_sim::{CHUNK, Source};

use crate::{all, file, lenient, pages};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    // As the program `zstd` does.
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn open(path: &Path) -> Box<dyn Source> {
    trace::open(path, &Options::default()).unwrap()
}

#[test]
fn a_files_name_tells_its_format() {
    for (name, format) in [
        ("a.u64", Some(Format::U64)),
        ("a.u64.zst", Some(Format::U64)),
        ("a.U64.gz", Some(Format::U64)),
        ("w106.oracleGeneral.zst", Some(Format::OracleGeneral)),
        ("w106.oracleGeneral.bin", Some(Format::OracleGeneral)),
        ("P3.lis", Some(Format::Arc)),
        ("P3.arc.gz", Some(Format::Arc)),
        ("multi1.trc", Some(Format::Lirs)),
        ("Financial1.spc", Some(Format::Spc)),
        ("hm_1.msr.csv.gz", Some(Format::Msr)),
        ("b.tencent", Some(Format::Tencent)),
        ("b.alibaba.csv", Some(Format::Alibaba)),
        ("sda.blkparse", Some(Format::Blkparse)),
        ("job.iolog", Some(Format::Fio)),
        ("a.csv", None),
        ("u64", None),
        ("a.txt.zst", None),
    ] {
        assert_eq!(Format::of_name(Path::new(name)), format, "{name}");
    }
    for format in Format::all() {
        assert_eq!(format.name().parse(), Ok(format));
        let ending = format!("x.{}", format.name());
        // A table's name does not tell its columns.
        let expected = Some(format).filter(|format| *format != Format::Csv);
        assert_eq!(Format::of_name(Path::new(&ending)), expected, "{ending}");
    }
}

#[test]
fn a_name_that_tells_no_format_gets_a_list_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "a.csv", "1\n");
    let said = trace::open(&path, &Options::default()).err().unwrap().to_string();
    let expected = "a.csv: the name does not tell the format; give it with --format: \
                    u64, oracleGeneral, arc, lirs, spc, msr, tencent, alibaba, blkparse, fio";
    assert!(said.contains(expected) && said.contains("--columns"), "{said}");
    let said = "x".parse::<Format>().unwrap_err();
    assert!(said.starts_with("\"x\" is not a format; known: u64, "), "{said}");
}

/// Regression: the error for a missing file whose name tells no format was about its name.
#[test]
fn missing_files_folders_and_empty_files_are_reported_before_an_unknown_format() {
    let folder = tempfile::tempdir().unwrap();
    file(&folder, "empty.u64", "");
    file(&folder, "empty.csv", "");
    for (name, expected) in [
        ("a.u64", "no such file"),
        ("a.csv", "no such file"),
        ("", "this is a folder, not a trace"),
        ("empty.u64", "the file is empty"),
        ("empty.csv", "the file is empty"),
        ("empty.csv/a.u64", "Not a directory"),
    ] {
        let path = folder.path().join(name);
        for format in [None, Some(Format::U64)] {
            let options = Options { format, ..Options::default() };
            let said = trace::open(&path, &options).err().unwrap().to_string();
            assert!(said.starts_with(&format!("{}: {expected}", path.display())), "{said}");
        }
    }
}

#[test]
fn compressed_files_are_recognised_whatever_their_name_says() {
    let folder = tempfile::tempdir().unwrap();
    let numbers: Vec<u64> = (0..100_000).map(|number| number * 7919 % 65_537).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let (first, second) = bytes.split_at(333_336);
    // `cat` and parallel compressors leave several streams in a file.
    for (name, packed) in [
        ("plain.u64", bytes.clone()),
        ("a.u64.gz", gzip(&bytes)),
        ("a.u64.zst", zstd(&bytes)),
        ("wrong.u64.gz", zstd(&bytes)),
        ("bare.u64", gzip(&bytes)),
        ("two.u64.gz", [gzip(first), gzip(second)].concat()),
        ("two.u64.zst", [zstd(first), zstd(second)].concat()),
    ] {
        let mut source = open(&file(&folder, name, packed));
        assert_eq!(all(source.as_mut()).unwrap(), numbers, "{name}");
        assert_eq!(source.progress(), Some(1.0), "{name}");
    }
    let text: String = numbers.iter().map(|number| format!("{number}\n")).collect();
    assert_eq!(all(open(&file(&folder, "a.lirs.zst", zstd(text.as_bytes()))).as_mut()).unwrap(), numbers);
    assert_eq!(all(open(&file(&folder, "empty.lirs.gz", gzip(b""))).as_mut()).unwrap(), [0u64; 0]);
}

#[test]
fn a_page_number_that_looks_like_gzip_is_a_page_number() {
    // The bytes 1f 8b 08, which begin a gzip file.
    let numbers = [0x08_8b1f_u64, 0x0d0d_0d0d];
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_eq!(pages(Format::U64, bytes, &Options::default()).unwrap(), numbers);
}

#[test]
fn a_truncated_or_damaged_compressed_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..50_000u64).map(|number| format!("{}\n", number * 7919 % 65_537)).collect();
    for (name, mut packed) in [("a.lirs.gz", gzip(text.as_bytes())), ("a.lirs.zst", zstd(text.as_bytes()))] {
        let whole = packed.clone();
        packed.truncate(packed.len() - 7);
        let path = file(&folder, name, &packed);
        let said = all(trace::open(&path, &lenient()).unwrap().as_mut()).unwrap_err().to_string();
        assert!(said.starts_with(&format!("{}:", path.display())), "{said}");

        let mut damaged = whole;
        let middle = damaged.len() / 2;
        damaged[middle..middle + 64].fill(0xff);
        let path = file(&folder, name, damaged);
        assert!(all(open(&path).as_mut()).is_err(), "{name}");
    }
}

#[test]
fn progress_rises_from_0_to_1_by_the_bytes_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "a.u64", vec![0; 8 << 20]);
    let (mut source, mut pages, mut last) = (open(&path), Vec::new(), 0.0);
    loop {
        pages.clear();
        source.next(&mut pages).unwrap();
        let now = source.progress().unwrap();
        assert!(now >= last && now <= 1.0);
        if pages.is_empty() {
            break;
        }
        last = now;
    }
    assert_eq!(source.progress(), Some(1.0));
    let endless = trace::read(Format::U64, "sample", io::repeat(0), &Options::default()).unwrap();
    assert_eq!(endless.progress(), None);
}

/// Repeats bytes, in pieces of odd lengths.
struct Again {
    piece: Vec<u8>,
    at: usize,
    left: u64,
}

impl Read for Again {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.piece.len() - self.at).min(self.left as usize);
        buffer[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at = (self.at + count) % self.piece.len();
        self.left -= count as u64;
        Ok(count)
    }
}

/// Returns the peak memory of this process, in bytes.
fn memory_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn reading_takes_no_memory_for_the_length_of_a_trace() {
    let count = |format, piece: &[u8], times: u64| {
        let reader = Again { piece: piece.to_vec(), at: 0, left: piece.len() as u64 * times };
        let mut source = trace::read(format, "sample", reader, &Options::default()).unwrap();
        let mut count = 0;
        let mut take = |chunk: &[u64]| {
            assert!(chunk.len() <= 2 * CHUNK);
            count += chunk.len() as u64;
            Ok(())
        };
        source.for_each_chunk(&mut take).unwrap();
        count
    };
    let before = memory_peak();
    assert_eq!(count(Format::U64, &[1; 8 * 1021], 1 << 16), 1021 << 16);
    assert_eq!(count(Format::Lirs, "12\n345\n*\n".repeat(1021).as_bytes(), 1 << 11), 1021 << 12);
    // Few lines of a million pages each.
    assert_eq!(count(Format::Arc, b"0 1048576 0 0\n", 100), 100 << 20);
    // Millions of lines without an access.
    assert_eq!(count(Format::Lirs, "*\n".repeat(10_000).as_bytes(), 1 << 10), 0);
    // The first trace is half a gigabyte. Other tests run in this process at the same time.
    let grown = memory_peak() - before;
    assert!(grown < 128 << 20, "{grown} bytes");
}

#[test]
fn pages_do_not_depend_on_how_the_bytes_arrive() {
    let text: String = (0..20_000u64).map(|line| format!("{} {} 0 {line}\n", line * 31, line % 5)).collect();
    let expected = pages(Format::Arc, &text, &Options::default()).unwrap();
    // Every line and every number is cut in two by some length of pieces.
    for piece in [1, 2, 7, 1021] {
        struct Pieces(Cursor<String>, usize);
        impl Read for Pieces {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let count = buffer.len().min(self.1);
                self.0.read(&mut buffer[..count])
            }
        }
        let reader = Pieces(Cursor::new(text.clone()), piece);
        let mut source = trace::read(Format::Arc, "sample", reader, &Options::default()).unwrap();
        assert_eq!(all(source.as_mut()).unwrap(), expected, "{piece}");
    }
}

#[test]
fn recorded_traces_have_their_known_counts() {
    let Some(folder) = std::env::var_os("OCTAVO_TRACES") else {
        println!("SKIP: OCTAVO_TRACES names no folder of traces");
        return;
    };
    for (name, accesses, distinct) in [
        ("arc_OLTP.u64.zst", 914_145, 186_880),
        ("cp_io.u64.zst", 113_872, 48_974),
        ("corda.u64.zst", 135_702, 90_468),
    ] {
        let path = Path::new(&folder).join(name);
        if !path.exists() {
            println!("SKIP: {} is not there", path.display());
            continue;
        }
        let pages = all(open(&path).as_mut()).unwrap();
        assert_eq!(pages.len(), accesses, "{name}");
        let mut counted = octavo_sim::Distinct::default();
        counted.add(&pages);
        assert_eq!((counted.count(), counted.is_exact()), (distinct, true), "{name}");
    }
}
