//! The plug-in for RocksDB, built with this library: `bindings/rocksdb` has the tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns why the tests cannot run here.
fn hindrance() -> Option<String> {
    if !Path::new("/usr/include/rocksdb/file_system.h").exists() {
        return Some("RocksDB's headers are not installed (package librocksdb-dev)".into());
    }
    for (program, package) in [("db_bench", "rocksdb-tools"), ("g++", "g++"), ("make", "make")] {
        if !Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success()) {
            return Some(format!("{program} does not run (package {package})"));
        }
    }
    None
}

/// The static library that cargo has built with this test: the newest, if there are several.
fn archive() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let files = std::fs::read_dir(test.parent()?).ok()?.flatten().map(|entry| entry.path());
    let is_archive = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("liboctavo_c") && name.ends_with(".a")
    };
    files.filter(is_archive).max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok())
}

#[test]
fn rocksdb_reads_through_the_plug_in() {
    if let Some(why) = hindrance() {
        assert!(std::env::var_os("OCTAVO_REQUIRE_CLIENTS").is_none(), "{why}");
        return println!("SKIP: {why}");
    }
    let archive = archive().expect("cargo builds liboctavo_c.a beside the tests");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let scratch = tempfile::tempdir_in(directory).unwrap();
    let mut make = Command::new("make");
    make.args(["-j2", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../rocksdb"), "test", "CXXFLAGS=-O1"]);
    make.arg(format!("ARCHIVE={}", archive.display()));
    make.arg(format!("OUT={}", directory.join("rocksdb").display()));
    make.arg(format!("SCRATCH={}", scratch.path().display()));
    let output = make.output().unwrap();
    let (told, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}\n{wrong}");
}
