//! `serve --check` and `serve` agree on every configuration.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::server::{Directory, program, signal, wait_until};

/// `memory_max`, the lines of each partition, the lines of the export, and whether this can be
/// served.
const CONFIGS: &[(&str, &[&str], &str, bool)] = &[
    ("32MiB", &[""], "", true),
    // More than memory_max together: `--check` divided memory by other code, and refused these.
    ("16MiB", &["max = \"14545KiB\"\nmin = \"2099KiB\"", "min = \"2930KiB\""], "", true),
    ("32MiB", &["min = \"7370KiB\"", "", "max = \"20345KiB\""], "", true),
    ("16MiB", &["max = \"8507KiB\"", "min = \"2866KiB\"", "max = \"15206KiB\""], "", true),
    ("32MiB", &["max = \"32MiB\"", "max = \"32MiB\"", "max = \"32MiB\""], "", true),
    ("32MiB", &["min = \"15MiB\"", "min = \"15MiB\""], "", false),
    ("8MiB", &["", "", "", "", "", ""], "", false),
    ("1MiB", &[""], "", false),
    ("32MiB", &["node = 5"], "", false),
    ("32MiB", &["max = \"1MiB\""], "", false),
    ("32MiB", &["", ""], "read_only = true", true),
];

#[test]
fn a_check_and_a_start_agree_on_every_configuration() {
    let directory = Directory::new();
    directory.disk("disk", 1 << 20);
    for (memory_max, partitions, export, can_be_served) in CONFIGS {
        let mut text = format!("[cache]\nmemory_max = \"{memory_max}\"\n");
        for (number, lines) in partitions.iter().enumerate() {
            text += &format!("[[partition]]\nname = \"p{number}\"\n{lines}\n");
        }
        agree(&directory, &directory.join("disk"), &text, export, *can_be_served);
    }
}

/// Such a device was served: the cache accepted writes that the device then refused.
#[test]
fn a_device_that_is_set_read_only_is_refused_unless_its_export_is_read_only() {
    let directory = Directory::new();
    let backing = directory.disk("backing", 1 << 20);
    let device = match losetup(&["--show", "-f", backing.to_str().unwrap()]) {
        Ok(device) => device,
        Err(why) => return println!("SKIP: no loop device: {why}"),
    };
    let cache = "[cache]\nmemory_max = \"32MiB\"\n[[partition]]\nname = \"p0\"\ncache_mode = \"writeback\"\n";
    let set =
        |what: &str| assert!(Command::new("blockdev").arg(what).arg(&device).status().unwrap().success());
    set("--setro");
    let said = agree(&directory, Path::new(&device), cache, "", false);
    agree(&directory, Path::new(&device), cache, "read_only = true", true);
    set("--setrw");
    agree(&directory, Path::new(&device), cache, "", true);
    losetup(&["-d", &device]).unwrap();
    let expected = format!(
        "export.path: {device}: this block device is set read-only; `blockdev --setrw {device}` makes it writable; to \
         serve it for reading only: read_only = true\n"
    );
    assert!(said.ends_with(&expected), "{said}");
}

fn losetup(words: &[&str]) -> Result<String, String> {
    let output = Command::new("losetup").args(words).output().map_err(|error| error.to_string())?;
    let text = |bytes| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Checks a configuration and starts a server with it. Compares what both print, and returns it.
fn agree(directory: &Directory, disk: &Path, cache: &str, export: &str, can_be_served: bool) -> String {
    let nbd = directory.join("nbd.sock");
    let text = format!(
        "{cache}[[export]]\nname = \"disk\"\npath = \"{}\"\npartition = \"p0\"\n{export}\n[listen]\nnbd = \"unix:{}\"\n",
        disk.display(),
        nbd.display()
    );
    let config = directory.join("octavo.toml");
    std::fs::write(&config, &text).unwrap();
    let serve = |more: &[&str]| {
        let mut command = program(&["--quiet", "serve", "--config"]);
        command.arg(&config).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let checked = serve(&["--check"]).wait_with_output().unwrap();
    let (listened, served) = start_and_stop(serve(&[]), &nbd);
    let errors = |output: &Output| -> String {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.lines().filter(|line| !line.contains("warning: ")).map(|line| line.to_owned() + "\n").collect()
    };
    assert_eq!(errors(&checked), errors(&served), "{text}");
    assert_eq!(
        (checked.status.success(), listened),
        (can_be_served, can_be_served),
        "{text}{}",
        errors(&served)
    );
    assert_eq!(checked.status.code(), served.status.code(), "{text}");
    errors(&served)
}

/// Whether a server listens, and how it ended: by SIGTERM if it did.
fn start_and_stop(mut server: Child, nbd: &Path) -> (bool, Output) {
    let mut listened = false;
    wait_until(
        || "the server neither listens nor ends".into(),
        || {
            listened = UnixStream::connect(nbd).is_ok();
            listened || server.try_wait().unwrap().is_some()
        },
    );
    if listened {
        signal(server.id(), "TERM");
    }
    (listened, server.wait_with_output().unwrap())
}
