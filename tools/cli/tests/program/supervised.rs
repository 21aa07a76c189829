//! The server as a service: its messages to the service manager (sd_notify(3)).

use std::os::unix::net::UnixDatagram;

use crate::server::{Directory, PATIENCE, Server, Setup, program};

/// A service manager: its socket, and the messages so far.
struct Manager(UnixDatagram);

impl Manager {
    /// Starts a server, whose configuration is one disk, with more variables in its environment.
    fn start(directory: &Directory, variables: &[(&str, &str)]) -> (Manager, Server) {
        let path = directory.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        // A first server writes the configuration.
        Server::start(directory, &Setup { memory_max: "16MiB", ..Setup::default() }).stop();
        let mut command = program(&["serve", "--config"]);
        command.arg(directory.join("octavo.toml")).env("NOTIFY_SOCKET", path).envs(variables.iter().copied());
        let (nbd, control) = (directory.join("nbd.sock"), directory.join("control.sock"));
        (Manager(socket), Server::spawn(command, directory, nbd, control))
    }

    /// The next message that has this line. The messages before it must not have a line of `never`.
    fn wait_for(&self, line: &str, never: &[&str]) -> String {
        loop {
            let mut message = [0; 4096];
            let len = self.0.recv(&mut message).unwrap_or_else(|error| panic!("no {line}: {error}"));
            let message = String::from_utf8(message[..len].to_vec()).unwrap();
            if message.lines().any(|found| found == line) {
                return message;
            }
            assert!(!message.lines().any(|found| never.contains(&found)), "{message} before {line}");
        }
    }
}

#[test]
fn a_service_manager_gets_messages_at_the_start_at_every_reload_and_at_the_end() {
    let directory = Directory::new();
    let (manager, mut server) = Manager::start(&directory, &[]);
    let ready = manager.wait_for("READY=1", &["RELOADING=1", "STOPPING=1", "WATCHDOG=1"]);
    assert_eq!(ready, "READY=1\nSTATUS=serving 1 export");

    server.signal("HUP");
    let reloading = manager.wait_for("RELOADING=1", &["READY=1"]);
    let time = reloading.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
    assert!(time.is_some_and(|time| time.parse::<u64>().is_ok_and(|time| time > 0)), "{reloading}");
    manager.wait_for("READY=1", &["RELOADING=1"]);

    // A refused reload also sends `READY=1`: the service keeps its old configuration.
    std::fs::write(directory.join("octavo.toml"), "wrong").unwrap();
    server.ctl_fail(1, &["reload"]);
    manager.wait_for("RELOADING=1", &[]);
    let ready = manager.wait_for("READY=1", &["RELOADING=1"]);
    assert_eq!(ready, "READY=1\nSTATUS=serving 1 export; the last reload failed");

    server.end("TERM", 0);
    manager.wait_for("STOPPING=1", &["READY=1", "RELOADING=1"]);
}

#[test]
fn a_watchdog_gets_messages_while_the_server_is_alive() {
    let directory = Directory::new();
    let (manager, _server) = Manager::start(&directory, &[("WATCHDOG_USEC", "100000")]);
    manager.wait_for("READY=1", &["WATCHDOG=1"]);
    for _ in 0..3 {
        manager.wait_for("WATCHDOG=1", &["READY=1"]);
    }
}
