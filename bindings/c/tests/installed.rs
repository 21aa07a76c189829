//! C programs against an installed library: in an empty directory, with `pkg-config` alone. The
//! examples and `api.c` are compiled with both libraries, and run plainly, under AddressSanitizer,
//! and under valgrind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const WARNINGS: &[&str] = &["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"];

/// The static library that cargo has built together with this test.
fn archive() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let built = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("liboctavo_c-") && name.ends_with(".a")
    };
    let changed = |path: &PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    built.filter(is_it).max_by_key(changed).expect("cargo builds a static library")
}

fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned() + &stderr
}

/// A prefix into which the library was installed.
struct Installed(TempDir);

impl Installed {
    fn new() -> Installed {
        let directory = tempfile::tempdir().unwrap();
        let mut make = Command::new("make");
        make.args(["-C", HERE, "--no-print-directory", "shared", "install"]);
        make.arg(format!("ARCHIVE={}", archive().display()));
        make.arg(format!("OUT={}", directory.path().join("out").display()));
        make.arg(format!("PREFIX={}", directory.path().join("prefix").display()));
        make.env_remove("MAKEFLAGS").env_remove("DESTDIR");
        run(&mut make);
        Installed(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn libraries(&self) -> PathBuf {
        self.path("prefix/lib")
    }

    /// Compiles a program of this folder with what `pkg-config` says.
    fn compile(&self, source: &str, flags: &[&str], is_static: bool) -> PathBuf {
        let name = Path::new(source).file_stem().unwrap().to_string_lossy();
        let program = self.path(&format!("{name}{}{is_static}", flags.join("").replace(['/', ','], "")));
        let mut ask = Command::new("pkg-config");
        ask.args(["--cflags", "--libs"]).args(is_static.then_some("--static")).arg("octavo");
        ask.env("PKG_CONFIG_PATH", self.libraries().join("pkgconfig"));
        let mut said = run(&mut ask);
        if is_static {
            said = said.replace("-loctavo", "-l:liboctavo.a");
        }
        let mut compile = Command::new("cc");
        compile.current_dir(self.0.path()).args(WARNINGS).args(flags).arg("-o").arg(&program);
        run(compile.arg(Path::new(HERE).join(source)).args(said.split_whitespace()));
        program
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.0.path()).env("LD_LIBRARY_PATH", self.libraries());
        command
    }
}

#[test]
fn the_examples_and_the_promises_of_the_header_hold_with_both_libraries() {
    let installed = Installed::new();
    for is_static in [false, true] {
        let run = |source: &str, arguments: &[&str]| {
            let program = installed.compile(source, &[], is_static);
            run(installed.command(program).args(arguments))
        };
        let said = run("examples/file.c", &["example.img"]);
        assert!(said.contains("sixteen pages") && said.contains("still with 'a'"), "{said}");
        assert_eq!(run("examples/backend.c", &[]), "before the sync: xxxxxx\nafter it: octavo\n");
        assert_eq!(run("examples/queue.c", &["example.img"]), "read 256 pieces\n");
        assert_eq!(run("tests/api.c", &["."]).trim(), env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn c_programs_are_clean_under_address_sanitizer() {
    let installed = Installed::new();
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    for (source, argument) in [("tests/api.c", "."), ("examples/file.c", "a.img"), ("examples/backend.c", "")]
    {
        let program = installed.compile(source, &flags, true);
        let mut command = installed.command(program);
        run(command.args((!argument.is_empty()).then_some(argument)));
    }
}

#[test]
fn c_programs_are_clean_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        assert!(std::env::var_os("OCTAVO_REQUIRE_CLIENTS").is_none(), "valgrind is missing");
        return eprintln!("skipped: valgrind is not installed");
    }
    let installed = Installed::new();
    let program = installed.compile("tests/api.c", &[], false);
    let mut valgrind = installed.command("valgrind");
    // valgrind does not know that io_uring_enter waits, and stops the other threads meanwhile. What
    // threads own that end with the process is "possibly lost".
    valgrind.args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    run(valgrind.arg(program).arg(".").env("IO_ENGINE", "blocking").env("NO_FORK", "1"));
}

#[test]
fn the_shared_library_has_versions_of_symbols_and_a_soname() {
    let installed = Installed::new();
    let library = installed.libraries().join("liboctavo.so");
    let symbols = run(Command::new("objdump").arg("-T").arg(&library));
    let own: Vec<&str> =
        symbols.lines().filter(|line| line.contains("OCTAVO_0.1 ") && line.contains("octavo_")).collect();
    let header = fs::read_to_string(installed.path("prefix/include/octavo.h")).unwrap();
    for line in &own {
        let name = line.split_whitespace().last().unwrap();
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
    let listed = fs::read_to_string(Path::new(HERE).join("octavo.map")).unwrap();
    assert_eq!(own.len(), listed.matches("octavo_").count(), "{symbols}");
    // Nothing of Rust or of the engine can clash with a program's names.
    let shown = symbols.lines().filter(|line| line.contains(" g ") && !line.contains("*UND*"));
    let strangers: Vec<&str> = shown.filter(|line| !line.contains("OCTAVO_0.1")).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
    let dynamic = run(Command::new("objdump").arg("-p").arg(&library));
    assert!(
        dynamic.lines().any(|line| line.contains("SONAME") && line.ends_with("liboctavo.so.0")),
        "{dynamic}"
    );
}
