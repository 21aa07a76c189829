//! What `make install` and the Debian package bring to a system. `packaging/check.sh` installs the
//! package in a container; these tests are the quick part.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::clients;
use crate::server::{Directory, octavo_fails, octavo_succeeds};

const CONFIG: &str = include_str!("../../../../packaging/octavo.toml");

/// Runs make in the repository, with these variables.
fn make(goal: &str, variables: &[(&str, &Path)]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut make = Command::new("make");
    make.arg("--no-print-directory").arg(goal).current_dir(root);
    for (name, value) in variables {
        make.arg(format!("{name}={}", value.display()));
    }
    let output = make.output().unwrap();
    assert!(output.status.success(), "make {goal}: {}", clients::text(&output.stderr));
    output
}

/// The paths of all files below a folder, relative to it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                all.push(path.strip_prefix(folder).unwrap().to_owned());
            }
        }
    }
    all.sort();
    all
}

#[test]
fn installed_manuals_completions_and_units_are_good_and_an_uninstall_leaves_the_configuration() {
    if !clients::present(&["make", "pandoc", "man", "lexgrog", "systemd-analyze"]) {
        return;
    }
    let directory = Directory::new();
    let (pages, prefix, etc) = (directory.join("man"), directory.join("usr"), directory.join("etc"));
    let program = Path::new(env!("CARGO_BIN_EXE_octavo"));
    make("man", &[("MAN", &pages)]);
    let variables: &[(&str, &Path)] =
        &[("MAN", &pages), ("OCTAVO", program), ("PREFIX", &prefix), ("SYSCONFDIR", &etc)];
    make("install", variables);

    let installed = files(&prefix);
    let pages: Vec<&PathBuf> = installed.iter().filter(|path| path.starts_with("share/man")).collect();
    assert!(pages.len() >= 10, "{installed:?}");
    for page in pages {
        manual(&prefix.join(page));
    }
    for file in ["bin/octavo", "share/doc/octavo/VM.md", "share/doc/octavo/examples/octavo.toml"] {
        assert!(installed.iter().any(|path| path == Path::new(file)), "{file} is not in {installed:?}");
    }
    let scripts = [
        "bash-completion/completions/octavo",
        "zsh/vendor-completions/_octavo",
        "fish/vendor_completions.d/octavo.fish",
    ];
    for script in scripts {
        let text = std::fs::read_to_string(prefix.join("share").join(script)).unwrap();
        assert!(text.contains("OCTAVO_COMPLETE"), "{script}: {text}");
    }
    for unit in ["octavo.service", "octavo-mount@.service"] {
        let unit = prefix.join("lib/systemd/system").join(unit);
        let verified = clients::succeed("systemd-analyze", &["verify", "--man=no", unit.to_str().unwrap()]);
        assert_eq!(clients::text(&verified.stderr), "");
    }
    assert_eq!(std::fs::read_link(prefix.join("sbin/mount.octavo")).unwrap(), Path::new("../bin/octavo"),);

    // A configuration that an operator has changed survives.
    std::fs::write(etc.join("octavo/octavo.toml"), "mine").unwrap();
    make("install", variables);
    make("uninstall", variables);
    assert_eq!(files(&prefix), [] as [PathBuf; 0]);
    assert_eq!(std::fs::read_to_string(etc.join("octavo/octavo.toml")).unwrap(), "mine");
}

/// Checks that a manual is rendered without warnings, and has a name for apropos(1).
fn manual(page: &Path) {
    let mut man = Command::new("man");
    man.args(["--warnings", "--encoding=UTF-8", "--local-file"]).arg(page);
    let output = man.env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8").output().unwrap();
    let complaints = clients::text(&output.stderr);
    // About sheets of paper, which a terminal does not have.
    let complaints: Vec<&str> =
        complaints.lines().filter(|line| !line.ends_with("will not fit on one page")).collect();
    assert!(output.status.success() && complaints.is_empty(), "{}: {complaints:?}", page.display());
    let text = clients::text(&output.stdout);
    assert!(text.contains("NAME") && !text.contains("```"), "{text}");
    clients::succeed("lexgrog", &[page.to_str().unwrap()]);
}

#[test]
fn files_below_destdir_need_no_root_and_name_the_places_without_it() {
    if !clients::present(&["make", "pandoc"]) {
        return;
    }
    let directory = Directory::new();
    let (pages, staged) = (directory.join("man"), directory.join("staged"));
    make("man", &[("MAN", &pages)]);
    let program = Path::new(env!("CARGO_BIN_EXE_octavo"));
    make(
        "install",
        &[("MAN", &pages), ("OCTAVO", program), ("DESTDIR", &staged), ("PREFIX", Path::new("/usr"))],
    );
    let unit = std::fs::read_to_string(staged.join("usr/lib/systemd/system/octavo.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/octavo serve --config /etc/octavo/octavo.toml\n"), "{unit}");
    assert_eq!(std::fs::read_to_string(staged.join("etc/octavo/octavo.toml")).unwrap(), CONFIG);
}

#[test]
fn the_installed_configuration_serves_nothing_until_it_is_edited_as_it_says() {
    let directory = Directory::new();
    let own = |text: &str| {
        let folder = directory.join("").display().to_string();
        text.replace("/run/octavo/", &folder).replace("/var/lib/octavo/", &folder)
    };
    directory.disk("vm1.raw", 1 << 20);
    let config = directory.join("octavo.toml");
    let check = ["serve", "--config", config.to_str().unwrap(), "--check"];

    std::fs::write(&config, own(CONFIG)).unwrap();
    let said = octavo_fails(&check, 2);
    let problems: Vec<&str> =
        said.lines().filter_map(|line| line.split_once(".toml:")).map(|(_, why)| why).collect();
    assert_eq!(problems.len(), 2, "{said}");
    assert!(problems[0].contains("partition: missing") && problems[1].contains("export: missing"), "{said}");

    // Lines of a section begin with # and no blank.
    let edited = |line: &str| {
        let bare = line
            .strip_prefix('#')
            .filter(|rest| rest.starts_with(|next: char| next == '[' || next.is_alphabetic()));
        bare.unwrap_or(line).to_owned() + "\n"
    };
    std::fs::write(&config, own(&CONFIG.lines().map(edited).collect::<String>())).unwrap();
    assert!(octavo_succeeds(&check).contains("no problems"));
}
