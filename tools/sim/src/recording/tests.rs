//! Files of a recording: written, rotated, torn, damaged.

use std::io::Cursor;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use octavo_table::recording::{Encoder, Event, Header, Secret, Totals, WHOLE};
use octavo_table::{PolicyKind, Shape};

use super::block::{self, Kind, MAGIC};
use super::{About, Ending, Reader, Rotation, Writer, parts};

fn about(id: u64) -> About {
    let header = Header {
        partition: "p".into(),
        policy: PolicyKind::Lru,
        ways: 16,
        page_bytes: 4096,
        shape: Shape { segments_max: 8, sets_per_segment: 4 },
        segments: 2,
        secret: Secret::Seed(3),
        sample_below: WHOLE,
        from_the_first: true,
    };
    About { id, part: 1, began_unix_ms: 5, header }
}

fn events(from: u64, count: u64) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new());
    (from..from + count).for_each(|page| encoder.access((1 << 40) | (page * page % 10_007), false, false));
    encoder.push(&Event::Totals(Totals { hits: 0, misses: from + count }));
    encoder.take(Vec::new())
}

/// Accesses up to the end or an error.
fn read(mut reader: Reader) -> (u64, Result<Ending, String>, u64) {
    let mut accesses = 0;
    loop {
        match reader.event() {
            Ok(Some(Event::Access { .. })) => accesses += 1,
            Ok(Some(_)) => {}
            Ok(None) => return (accesses, Ok(reader.ending().expect("it is read")), reader.skipped()),
            Err(error) => {
                assert_eq!(reader.event(), Ok(None), "nothing follows an error");
                return (accesses, Err(error.to_string()), reader.skipped());
            }
        }
    }
}

fn read_bytes(bytes: &[u8], skip_bad: bool) -> (u64, Result<Ending, String>, u64) {
    match Reader::read("file", Cursor::new(bytes.to_vec()), skip_bad) {
        Ok(reader) => read(reader),
        Err(error) => (0, Err(error.to_string()), 0),
    }
}

/// A file of three blocks of a thousand accesses, and where its blocks begin.
fn file() -> (Vec<u8>, Vec<usize>) {
    let mut file = MAGIC.to_vec();
    let mut begins = Vec::new();
    let mut add = |kind, bytes: &[u8]| {
        begins.push(file.len());
        file.extend(block::pack(kind, 9, bytes).unwrap());
    };
    add(Kind::Header, &about(1).encode());
    (0..3).for_each(|number| add(Kind::Events, &events(number * 1000, 1000)));
    add(Kind::End, &Ending::Stopped.encode());
    (file, begins)
}

#[test]
fn everything_before_a_torn_end_is_read() {
    let (file, begins) = file();
    assert_eq!(read_bytes(&file, false), (3000, Ok(Ending::Stopped), 0));
    for end in (begins[1]..file.len()).step_by(7) {
        let whole = begins[2..].iter().filter(|begin| **begin <= end).count() as u64;
        assert_eq!(read_bytes(&file[..end], false), (1000 * whole.min(3), Ok(Ending::Torn), 0), "{end}");
        // What a file system has not filled reads as zeros.
        let mut longer = file[..end].to_vec();
        longer.resize(end + 5000, 0);
        let (accesses, ending, _) = read_bytes(&longer, false);
        let is_at_border = begins.contains(&end);
        assert!(
            !is_at_border || (accesses, &ending) == (1000 * whole.min(3), &Ok(Ending::Torn)),
            "{end}: {ending:?}"
        );
    }
}

#[test]
fn a_damaged_block_is_an_error_or_passed_over_and_counted() {
    let (file, begins) = file();
    let mut damaged = file.clone();
    damaged[begins[2] + 60] ^= 4;
    let (accesses, error, _) = read_bytes(&damaged, false);
    let error = error.unwrap_err();
    assert_eq!(accesses, 1000);
    assert!(error.contains(&format!("block at byte {}: its checksum is wrong", begins[2])), "{error}");
    assert_eq!(read_bytes(&damaged, true), (2000, Ok(Ending::Stopped), 1));
    // The last block is torn and not damaged.
    let mut torn = file.clone();
    *torn.last_mut().unwrap() ^= 1;
    assert_eq!(read_bytes(&torn, false), (3000, Ok(Ending::Torn), 0));
    for (bytes, why) in [
        (&b""[..], "no recording"),
        (b"octavo is nice", "no recording"),
        (&[&MAGIC[..7], &[9]].concat(), "version 9"),
        (&MAGIC, "no header"),
        (&file[..begins[1] - 1], "cut off"),
        (&[&file[..], b"more"].concat(), ""),
    ] {
        let (_, result, _) = read_bytes(bytes, false);
        match why {
            "" => assert_eq!(result, Ok(Ending::Stopped)),
            _ => assert!(result.as_ref().is_err_and(|error| error.contains(why)), "{result:?}"),
        }
    }
}

/// A folder of one test's own.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("octavo-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed disturbs nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn write(path: &Path, rotation: Rotation, id: u64, blocks: u64) -> Writer {
    let mut writer = Writer::create(path, rotation, about(id)).unwrap();
    (0..blocks).for_each(|number| writer.write(number, &events(number * 1000, 1000)).unwrap());
    writer.finish(blocks, Ending::Stopped).unwrap();
    writer
}

#[test]
fn files_follow_each_other_are_private_and_read_in_order() {
    let folder = Folder::new("rotated");
    let path = folder.0.join("p.octr");
    let rotation = Rotation { file_bytes_max: Some(5000), keep: None };
    let writer = write(&path, rotation, 1, 10);
    let files = folder.files();
    assert!(files.len() > 3 && files[0].ends_with("p.00001.octr") && writer.path() == files[files.len() - 1]);
    let bytes: u64 = files.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
    assert_eq!(bytes, writer.bytes());
    for file in &files {
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o7777, 0o600);
    }
    // Another recording goes on with the numbers; each is a group of its own, in order, whatever the order of the paths.
    write(&path, Rotation { keep: Some(2), ..rotation }, 2, 4);
    let later = folder.files();
    assert_eq!(later.len(), 2, "{later:?}");
    write(&folder.0.join("q.octr"), Rotation::default(), 3, 1);
    write(&folder.0.join("r.octr"), rotation, 4, 10);
    let mut all = folder.files();
    all.reverse();
    let groups = parts(&all);
    assert_eq!(groups.len(), 3, "{groups:?}");
    assert_eq!(read(Reader::open(&groups[0], false).unwrap()), (10_000, Ok(Ending::Stopped), 0));
    assert!(groups[0].is_sorted());
    // One that is missing is named.
    let gap = [groups[0][0].clone(), groups[0][2].clone()];
    let (_, error, _) = read(Reader::open(&gap, false).unwrap());
    assert!(error.unwrap_err().contains("part 2 is missing"));
    // No file is replaced.
    assert!(Writer::create(&folder.0.join("q.octr"), Rotation::default(), about(5)).is_err());
}
