//! Written traces are read back, and libCacheSim's records have the next access of each page.

use std::collections::HashMap;
use std::fs::File;

use octavo_sim::trace::{self, Options, Target, Writer};

use crate::{all, file};

fn numbers() -> Vec<u64> {
    // More than the second pass reads at a time, and more than the writer buffers.
    (0..50_000u64)
        .map(|number| number * number % 10_007 * 0x1_0000_0001)
        .chain([u64::MAX, 0, u64::MAX])
        .collect()
}

#[test]
fn written_traces_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    for name in Target::names() {
        let path = folder.path().join(format!("a.{name}"));
        let target = Target::of_name(&path).unwrap();
        assert_eq!(Target::named(name), Some(target));
        let mut writer = Writer::create(&path, target).unwrap();
        numbers().chunks(7001).for_each(|some| writer.write(some).unwrap());
        assert!(!path.exists(), "{name}: a file has its name when it is whole");
        assert_eq!(writer.finish().unwrap(), numbers().len() as u64);
        let mut source = trace::open(&path, &Options::default()).unwrap();
        assert_eq!(all(source.as_mut()).unwrap(), numbers(), "{name}");
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        Target::names().count(),
        "nothing else is left"
    );
}

#[test]
fn oracle_general_has_the_next_access_of_each_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.oracleGeneral");
    let mut writer = Writer::create(&path, Target::OracleGeneral).unwrap();
    writer.write(&numbers()).unwrap();
    writer.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 24 * numbers().len());
    // The naive twin: accesses count from 1.
    let mut next = HashMap::new();
    for (at, page) in numbers().into_iter().enumerate().rev() {
        let record = &bytes[24 * at..24 * at + 24];
        assert_eq!(record[..4], (at as u32).to_le_bytes());
        assert_eq!(record[4..12], page.to_le_bytes());
        assert_eq!(record[12..16], 1u32.to_le_bytes());
        let expected = next.insert(page, at as i64 + 1).unwrap_or(-1);
        assert_eq!(record[16..], expected.to_le_bytes(), "access {at}");
    }
}

#[test]
fn an_abandoned_file_is_removed_and_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "a.u64", "as it was");
    let mut writer = Writer::create(&path, Target::U64).unwrap();
    writer.write(&numbers()).unwrap();
    drop(writer);
    assert_eq!(std::fs::read(&path).unwrap(), b"as it was");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_format_with_a_second_pass_cannot_be_written_to_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "pipe", "");
    let out = File::options().write(true).open(&path).unwrap();
    let mut writer = Writer::new(out, Target::Lirs).unwrap();
    writer.write(&[3, 2]).unwrap();
    writer.finish().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"3\n2\n");
    let said = Writer::new(std::io::sink(), Target::OracleGeneral).err().unwrap().to_string();
    assert!(said.starts_with("oracleGeneral"), "{said}");
}
