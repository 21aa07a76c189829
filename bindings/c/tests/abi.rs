//! Programs that were compiled with an earlier header go on working: `abidiff` compares the header
//! with that of the last release (`abi/octavo-0.h`), through a library that each describes.
//!
//! Functions and constants may be added; structs may grow at their ends. A release replaces
//! `abi/octavo-0.h`. What breaks programs needs another soname.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Makes a library with the functions of a header, which do nothing. Its debugging information
/// describes them.
fn library_of(header: &str, directory: &Path, name: &str) -> PathBuf {
    let mut code = String::from("#include \"octavo.h\"\n");
    let declarations = header.split("*/").map(|part| part.split("/*").next().unwrap_or_default());
    let declarations: String = declarations.collect();
    let lines =
        declarations.lines().filter(|line| !line.starts_with(['#', '}']) && !line.starts_with("extern"));
    for declaration in lines.collect::<Vec<_>>().join(" ").split(';') {
        let before = declaration.split('(').next().unwrap_or_default();
        if before.rsplit([' ', '*']).next().is_some_and(|name| name.starts_with("octavo_"))
            && before != declaration
        {
            code += &format!("{declaration} {{ __builtin_trap(); }}\n");
        }
    }
    let folder = directory.join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("octavo.h"), header).unwrap();
    fs::write(folder.join("stub.c"), code).unwrap();
    let library = folder.join("liboctavo.so.0");
    let mut cc = Command::new("cc");
    cc.current_dir(&folder).args(["-g", "-fno-eliminate-unused-debug-types", "-shared", "-fPIC", "-I."]);
    let Output { status, stderr, .. } = cc.arg("-o").arg(&library).arg("stub.c").output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    library
}

/// Returns what would break programs that use the old header. `None`: there is no `abidiff`.
fn breaks(old: &str, new: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("abidiff");
    command.arg("--no-added-syms");
    command.arg(library_of(old, directory.path(), "old")).arg(library_of(new, directory.path(), "new"));
    let Ok(output) = command.output() else {
        assert!(std::env::var_os("OCTAVO_REQUIRE_CLIENTS").is_none(), "abidiff (abigail-tools) is missing");
        eprintln!("skipped: abidiff (abigail-tools) is not installed");
        return None;
    };
    let code = output.status.code().unwrap();
    assert_eq!(code & 3, 0, "abidiff: {}", String::from_utf8_lossy(&output.stderr));
    // Bit 2: there are changes.
    Some(if code & 4 != 0 { String::from_utf8_lossy(&output.stdout).into_owned() } else { String::new() })
}

fn kept(name: &str) -> String {
    fs::read_to_string(Path::new(HERE).join(name)).unwrap()
}

#[test]
fn programs_of_the_last_release_go_on_working() {
    let Some(found) = breaks(&kept("abi/octavo-0.h"), &kept("include/octavo.h")) else { return };
    assert!(found.is_empty(), "{found}");
}

#[test]
fn changed_headers_are_caught() {
    let header = kept("include/octavo.h");
    for (from, to) in [
        ("int octavo_sync(const struct octavo_object *object);\n", ""),
        ("void *buffer, size_t len);", "void *buffer, uint32_t len);"),
        ("    uint64_t memory_max_bytes;\n", "    uint32_t memory_max_bytes;\n"),
    ] {
        let changed = header.replacen(from, to, 1);
        assert!(changed != header, "{from}");
        let Some(found) = breaks(&header, &changed) else { return };
        assert!(!found.is_empty(), "{from} -> {to}");
    }
    let added = header.replacen("int octavo_sync(", "int octavo_more(void);\n\nint octavo_sync(", 1);
    assert_eq!(breaks(&header, &added).unwrap_or_default(), "");
}
