//! `include/octavo.h` and `octavo.map` say what the library has.

use std::path::Path;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Set to write the files instead of comparing them.
const UPDATE: &str = "OCTAVO_UPDATE_HEADER";

fn generated() -> String {
    let config = cbindgen::Config::from_file(Path::new(HERE).join("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_config(config);
    // In the order in which a reader needs them. Not `with_crate`, which would call cargo.
    let files = ["error", "logging", "cache", "partition", "backend", "object", "pin", "queue", "stat"];
    let builder =
        files.iter().fold(builder, |builder, file| builder.with_src(format!("{HERE}/src/{file}.rs")));
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    let header = String::from_utf8(header).unwrap();
    let header = header.replace("# Safety\n", "The caller promises:\n");
    header.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// The names of all functions of a header, sorted: they stand before the parenthesis in lines that
/// begin with a type.
fn functions(header: &str) -> Vec<&str> {
    let begins = |line: &&str| line.starts_with(|first: char| first.is_ascii_lowercase());
    let declarations = header.lines().filter(begins).filter(|line| !line.starts_with("typedef"));
    let names = declarations.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
    let mut names: Vec<&str> = names.filter(|name| name.starts_with("octavo_")).collect();
    names.sort_unstable();
    names
}

fn is_current(name: &str, content: &str) {
    let path = Path::new(HERE).join(name);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, content).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == content, "{name} is not what the code has: run this test with {UPDATE}=1");
}

#[test]
fn the_header_is_that_of_the_code() {
    is_current("include/octavo.h", &generated());
}

#[test]
fn the_library_shows_the_functions_of_the_header_and_no_other() {
    let header = generated();
    let names = functions(&header);
    assert!(names.len() > 40, "{names:?}");
    let lines: String = names.iter().map(|name| format!("        {name};\n")).collect();
    is_current("octavo.map", &format!("OCTAVO_0.1 {{\n    global:\n{lines}    local:\n        *;\n}};\n"));
}
