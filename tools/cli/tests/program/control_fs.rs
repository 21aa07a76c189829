//! `control.fs`, driven as administrators do: with cat, echo and tee.
//!
//! Without /dev/fuse, or if mounting is not allowed, the tests print `SKIP`.

use std::path::PathBuf;
use std::process::Command;

use crate::clients::{shell, shell_succeeds as said};
use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup, octavo_fails};

/// A server with a control file system and two partitions in a group, or `None` if the file system
/// cannot be mounted.
fn served() -> Option<(Directory, Server, PathBuf)> {
    let directory = Directory::new();
    let server = start(&directory);
    let fs = directory.join("fs");
    if server.log().contains("not mounted") {
        println!("SKIP: the control file system cannot be mounted: {}", server.log());
        return None;
    }
    Some((directory, server, fs))
}

fn start(directory: &Directory) -> Server {
    let more = format!(
        "[control]\nfs = \"{}\"\n[[partition]]\nname = \"host/vm1\"\nmax = \"8MiB\"\n\
         [[partition]]\nname = \"host/vm2\"\nmax = \"8MiB\"",
        directory.join("fs").display()
    );
    // These tests count resident pages, and a page that a resize moves is not resident for a
    // moment.
    let cache = "reaper = false";
    Server::start(directory, &Setup { cache, listen: &more, ..Setup::default() })
}

#[test]
fn shells_read_and_change_partitions() {
    let Some((_directory, server, fs)) = served() else { return };
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    // So few pages that no set is full, in which case a page would be written past the cache.
    client.write(0, &vec![7; 1 << 20]);

    assert_eq!(said(&fs, "ls"), "host\np\n");
    assert_eq!(said(&fs, "ls host"), "current\nhigh\nlow\nmax\nmin\nvm1\nvm2\nweight\n");
    let files = "current\ndirty_max\nhigh\nlow\nmax\nmin\nmrc\nobjects\npolicy\nreclaim\nstat\nweight\n";
    assert_eq!(said(&fs, "ls p"), files);
    assert_eq!(said(&fs, "cat p/min p/high p/weight p/policy p/objects"), "0\nmax\n100\noctavo\ndisk\n");
    assert_eq!(said(&fs, "grep ^resident_bytes p/stat"), format!("resident_bytes {}\n", 1 << 20));
    assert_eq!(said(&fs, "stat -c '%a %s' p/min p/current p/reclaim"), "644 0\n444 0\n200 0\n");
    assert_eq!(said(&fs, "awk 'NF != 2 { exit 1 }' p/mrc && cat host/*/max"), format!("{0}\n{0}\n", 8 << 20));

    // Every way to write a value.
    for (line, file, value) in [
        ("echo 2MiB > p/min", "p/min", "2097152\n"),
        ("echo 3M >> p/min", "p/min", "3145728\n"),
        ("echo 250 | tee p/weight host/vm1/weight", "host/vm1/weight", "250\n"),
        ("printf lru > p/policy", "p/policy", "lru\n"),
        ("printf '\\n 12MiB \\n' > p/max", "p/max", "12582912\n"),
        ("echo 1MiB | dd of=p/dirty_max bs=64", "p/dirty_max", "1048576\n"),
        ("truncate -s 0 p/min && : > p/min", "p/min", "3145728\n"),
        ("echo max > p/max", "p/max", "max\n"),
        ("echo 20MiB > host/max && echo 300 > host/weight", "host/max", "20971520\n"),
    ] {
        said(&fs, line);
        assert_eq!(said(&fs, &format!("cat {file}")), value, "{line}");
    }
    let settings = server.ctl_json(&["partitions"]);
    assert_eq!(settings["partitions"][0]["min"], 3_145_728);
    assert_eq!(settings["groups"][0]["weight"], 300);
    server.ctl_succeed(&["set", "host", "max=24MiB", "weight=400"]);
    assert_eq!(said(&fs, "cat host/max host/weight"), "25165824\n400\n");
    for (words, why) in [
        (["set", "host", "policy=lru"], "policy=lru: a group has only min, low, high, max, weight"),
        (["set", "host", "weight=0"], "weight"),
        (["set", "hots", "weight=1"], "no partition is called \"hots\""),
    ] {
        let answer = server.ctl(&words);
        let refused = String::from_utf8_lossy(&answer.stderr);
        assert!(!answer.status.success() && refused.contains(why), "{words:?}: {refused}");
    }
    assert_eq!(said(&fs, "cat host/weight"), "400\n");
    assert_eq!(client.read(0, 1 << 20), vec![7; 1 << 20]);
    let before: u64 = said(&fs, "cat p/current").trim().parse().unwrap();
    said(&fs, "echo 4MiB > p/reclaim");
    let after: u64 = said(&fs, "cat p/current").trim().parse().unwrap();
    assert!(after < before, "{after} after {before}");

    // Invalid values are refused, and the log says why.
    for (line, error, log) in [
        ("/bin/echo much > p/max", "Invalid argument", "p/max: \"much\" does not begin with a number"),
        (
            "/bin/echo lruu > p/policy",
            "Invalid argument",
            "p/policy: no policy is called \"lruu\"; did you mean \"lru\"?",
        ),
        ("/bin/echo 0 > host/weight", "Invalid argument", "host/weight: "),
        ("head -c 5000 /dev/zero > p/max", "Invalid argument", "p/max: a value is one line of text"),
        ("mkdir p/new", "Operation not permitted", ""),
        ("rm p/max", "Operation not permitted", ""),
        ("mv p/max p/least", "Operation not permitted", ""),
        ("chmod 600 p/max", "Operation not permitted", ""),
        ("cat p/absent", "No such file", ""),
    ] {
        let output = shell(&fs, line);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(error), "{line}: {stderr}");
        assert!(server.log().contains(log), "{log} is not in\n{}", server.log());
    }
    assert_eq!(said(&fs, "cat p/max p/policy"), "max\nlru\n");

    server.stop();
    assert_eq!(std::fs::read_dir(&fs).unwrap().count(), 0, "it is unmounted");
}

#[test]
fn a_dead_mount_of_a_killed_server_is_replaced() {
    let Some((directory, mut server, fs)) = served() else { return };
    // Another server does not mount over this one.
    octavo_fails(&["serve", "--config", directory.join("octavo.toml").to_str().unwrap()], 2);
    assert_eq!(said(&fs, "cat p/weight"), "100\n");

    server.signal("KILL");
    server.wait();
    let dead = std::fs::metadata(&fs).unwrap_err();
    assert!(dead.to_string().contains("not connected"), "{dead}");
    let server = start(&directory);
    assert!(server.log().contains("removing the dead mount"), "{}", server.log());
    assert_eq!(said(&fs, "cat p/weight"), "100\n");
    // A shell has its directory in the file system when the server ends.
    let mut inside = Command::new("/bin/sleep").arg("1000").current_dir(fs.join("p")).spawn().unwrap();
    server.stop();
    assert_eq!(std::fs::read_dir(&fs).unwrap().count(), 0, "it is unmounted");
    inside.kill().unwrap();
    inside.wait().unwrap();
}

/// `fs = "/proc"` hid the machine's own `/proc`.
#[test]
fn a_directory_that_is_not_empty_is_not_mounted_over() {
    let directory = Directory::new();
    let disk = directory.disk("disk", 16 << 20);
    std::fs::create_dir(directory.join("fs")).unwrap();
    std::fs::write(directory.join("fs").join("precious"), "x").unwrap();
    let config = directory.join("octavo.toml");
    let text = format!(
        "[cache]\nmemory_max = \"32MiB\"\n[[partition]]\nname = \"p\"\n[[export]]\nname = \"disk\"\n\
         path = \"{}\"\npartition = \"p\"\n[listen]\nnbd = \"unix:{}\"\n[control]\nfs = \"{}\"\n",
        disk.display(),
        directory.join("nbd.sock").display(),
        directory.join("fs").display()
    );
    std::fs::write(&config, text).unwrap();
    let said = octavo_fails(&["serve", "--config", config.to_str().unwrap()], 2);
    assert!(said.contains("octavo.toml:12:6: control.fs: the directory is not empty"), "{said}");
    assert_eq!(std::fs::read(directory.join("fs").join("precious")).unwrap(), b"x");
}

#[test]
fn the_tree_follows_partitions_and_exports_that_come_and_go() {
    let Some((directory, server, fs)) = served() else { return };
    // Without a reaper, only memory that no partition has can be given to a new one.
    said(&fs, "echo 8MiB > p/max");
    server.ctl_succeed(&["partition", "add", "host/vm3", "--max", "4MiB", "--weight", "7"]);
    assert_eq!(said(&fs, "ls -d host/vm3 && cat host/vm3/weight host/vm3/objects"), "host/vm3\n7\n");
    let guest = directory.disk("guest", 1 << 20);
    let words = ["export", "add", "guest", "--path", guest.to_str().unwrap(), "--partition", "host/vm3"];
    server.ctl_succeed(&words);
    assert_eq!(said(&fs, "cat host/vm3/objects"), "guest\n");
    server.ctl_succeed(&["export", "remove", "guest"]);
    server.ctl_succeed(&["partition", "remove", "host/vm3"]);
    assert_eq!(said(&fs, "ls host"), "current\nhigh\nlow\nmax\nmin\nvm1\nvm2\nweight\n");
}
