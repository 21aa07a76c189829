//! docs/MOUNT.md: what a new user pastes works as it is printed. Only the folders are replaced by
//! the test's own.

use std::fs;
use std::path::Path;

use crate::clients::shell_succeeds;
use crate::mount::{can_mount, directories, is_mounted, path};
use crate::server::{Directory, octavo_succeeds, program, signal, wait_until};

const PAGE: &str = include_str!("../../../../docs/MOUNT.md");

/// The only code block of a language that contains a text, with the test's folders.
fn block(directory: &Directory, language: &str, text: &str) -> String {
    let begin = format!("\n```{language}\n");
    let blocks = PAGE.split(&begin).skip(1).filter_map(|rest| rest.split("\n```").next());
    let found: Vec<&str> = blocks.filter(|block| block.contains(text)).collect();
    assert_eq!(found.len(), 1, "blocks of {language} with {text}: {found:?}");
    let own = |name: &str| path(&directory.join(name)).to_owned();
    let text = found[0].replace("/srv/data", &own("source")).replace("/mnt/data", &own("target"));
    text.replace("/run/octavo", &own("run")).replace("octavo.toml", &own("octavo.toml"))
}

/// Runs a printed block with the tested program.
fn paste(directory: &Directory, lines: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_octavo"));
    let folder = path(program.parent().unwrap()).to_owned();
    shell_succeeds(
        &directory.join(""),
        &format!("export PATH={folder}:$PATH XDG_STATE_HOME=$PWD/state\n{lines}"),
    )
}

#[test]
fn the_printed_commands_mount_and_unmount_a_directory() {
    if !can_mount() {
        return;
    }
    let (directory, source, target) = directories();
    fs::write(source.join("file"), "here").unwrap();
    paste(&directory, &block(&directory, "sh", "octavo mount"));
    assert_eq!(fs::read(target.join("file")).unwrap(), b"here");
    // The child of another test may have the file open for a moment.
    let unmount = block(&directory, "sh", "umount").replace("umount", "fusermount3 -u");
    wait_until(
        || "it stays mounted".into(),
        || {
            let _ = crate::clients::shell(&source, &unmount);
            !is_mounted(&target)
        },
    );
}

#[test]
fn the_printed_configuration_serves_the_directory_of_tenants() {
    let (directory, source, target) = directories();
    fs::create_dir_all(source.join("home/ann")).unwrap();
    let config = directory.join("octavo.toml");
    fs::write(&config, block(&directory, "toml", "[[mount]]")).unwrap();
    let commands = block(&directory, "sh", "--check");
    let (check, stat) = commands.split_once('\n').unwrap();
    assert!(paste(&directory, check).contains("no problems"));
    if !can_mount() {
        return;
    }
    let mut server = program(&["serve", "--quiet", "--config", path(&config)]).spawn().unwrap();
    wait_until(|| "it does not listen".into(), || directory.join("run/control.sock").exists());
    fs::write(target.join("home/ann/file"), vec![1; 1 << 20]).unwrap();
    let table = paste(&directory, stat);
    assert!(table.contains("homes,rest,tables"), "{table}");
    signal(server.id(), "TERM");
    assert!(server.wait().unwrap().success());
    assert!(!is_mounted(&target));
    assert!(octavo_succeeds(&["mount", "--help"]).contains("octavo mount /srv/data /mnt"));
}
