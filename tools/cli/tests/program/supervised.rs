//! The server as a service: its messages to the service manager (sd_notify(3)).

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::nbd_client::Client;
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

impl Manager {
    /// Takes descriptors with their names, up to the first message that has none after them.
    fn stored(&self) -> Vec<(String, OwnedFd)> {
        let mut stored = Vec::new();
        self.0.set_nonblocking(true).unwrap();
        loop {
            let mut bytes = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let slices = &mut [IoSliceMut::new(&mut bytes)];
            let Ok(message) = recvmsg(&self.0, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) else {
                return stored;
            };
            let text = String::from_utf8(bytes[..message.bytes].to_vec()).unwrap();
            for rights in ancillary.drain() {
                let RecvAncillaryMessage::ScmRights(descriptors) = rights else { continue };
                assert!(text.lines().any(|line| line == "FDSTORE=1"), "{text}");
                // The manager must not drop a socket because its peer has closed it.
                assert!(text.lines().any(|line| line == "FDPOLL=0"), "{text}");
                let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap();
                stored.extend(descriptors.map(|descriptor| (name.to_owned(), descriptor)));
            }
        }
    }

    /// Starts a server with these descriptors, as systemd does.
    fn restart(&self, directory: &Directory, stored: &[(String, OwnedFd)]) -> Server {
        let mut line = String::new();
        let mut kept = Vec::new();
        // In another order: the names say which is which.
        for (number, (_, descriptor)) in stored.iter().rev().enumerate() {
            // Far from the numbers that they get.
            let high = fcntl_dupfd_cloexec(descriptor, 300).unwrap();
            fcntl_setfd(&high, FdFlags::empty()).unwrap();
            line += &format!("exec {}<&{}\n", number + 3, high.as_raw_fd());
            kept.push(high);
        }
        let names: Vec<&str> = stored.iter().rev().map(|(name, _)| name.as_str()).collect();
        line += &format!(
            "LISTEN_PID=$$ LISTEN_FDS={} LISTEN_FDNAMES={} exec \"$0\" serve --config \"$1\"",
            names.len(),
            names.join(":")
        );
        let mut command = Command::new("bash");
        command.args(["-c", &line, env!("CARGO_BIN_EXE_octavo")]).arg(directory.join("octavo.toml"));
        command.env("NOTIFY_SOCKET", directory.join("notify")).env("FDSTORE", "4096");
        Server::spawn(command, directory, directory.join("nbd.sock"), directory.join("control.sock"))
    }
}

#[test]
fn a_service_that_is_restarted_gets_its_pages_sockets_and_clients_back() {
    let directory = Directory::new();
    let (manager, mut server) = Manager::start(&directory, &[("FDSTORE", "4096")]);
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    for page in 0..500u64 {
        client.write(page * 4096, &[page as u8; 4096]);
    }
    for _ in 0..2 {
        server.end("TERM", 0);
        let stored = manager.stored();
        // The description, the pages, the socket for clients, and a client.
        assert_eq!(stored.len(), 4, "{:?}", stored.iter().map(|(name, _)| name).collect::<Vec<_>>());
        server = manager.restart(&directory, &stored);
        for (name, _) in &stored {
            manager.0.set_nonblocking(false).unwrap();
            manager.wait_for(&format!("FDNAME={name}"), &["READY=1"]);
        }
        for page in 0..500u64 {
            assert_eq!(client.read(page * 4096, 4096), [page as u8; 4096], "page {page}");
        }
        assert_eq!(server.stat()["partitions"][0]["misses"], 0, "{}", server.log());
    }
    drop(client);
}

#[test]
fn a_service_whose_stored_descriptors_are_useless_starts_cold() {
    let directory = Directory::new();
    let (manager, mut server) = Manager::start(&directory, &[("FDSTORE", "4096")]);
    server.end("TERM", 0);
    let mut stored = manager.stored();
    // The description is missing.
    stored.remove(0);
    let mut server = manager.restart(&directory, &stored);
    server.wait_for_log("this server starts cold");
    assert!(Client::connect(&server.nbd, "disk").is_ok());
    server.end("TERM", 0);
}
