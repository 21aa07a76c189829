//! TLS as users configure it: the commands of docs/TLS.md as they are printed there, renewals while
//! the server runs, and certificates that cannot be used.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::clients::{self, shell, shell_succeeds, text};
use crate::server::{Directory, Server, octavo_fails, program};

const HOWTO: &str = include_str!("../../../../docs/TLS.md");

/// The n-th block of commands of the page.
fn commands(index: usize) -> &'static str {
    let block = HOWTO.split("```sh\n").nth(index + 1).expect("a block of commands");
    block.split("```").next().unwrap()
}

/// Makes certificates with the commands of the page.
fn make_certificates(directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    shell_succeeds(directory, &format!("set -e\n{}", commands(0)));
}

/// A configuration whose clients of TCP must use TLS.
fn configure(directory: &Directory, listen: &str) -> String {
    directory.disk("disk", 8 << 20);
    let (dir, config) = (directory.join(""), directory.join("octavo.toml"));
    let dir = dir.to_str().unwrap().trim_end_matches('/');
    let text = format!(
        "[cache]\nmemory_max = \"32MiB\"\n[[partition]]\nname = \"p\"\n[[export]]\nname = \"vm1\"\n\
         path = \"@/disk\"\npartition = \"p\"\n[listen]\n\
         nbd = [\"unix:@/nbd.sock\", \"tcp:127.0.0.1:0\", \"tcp:0.0.0.0:0\"]\n\
         control = \"unix:@/control.sock\"\n[listen.tls]\n{listen}\n"
    );
    std::fs::write(&config, text.replace('@', dir)).unwrap();
    config.to_str().unwrap().into()
}

/// Starts a server. Returns it, and the port of the address that is not loopback.
fn start(directory: &Directory) -> (Server, String) {
    let config = configure(directory, "certificates = \"@/server\"");
    let mut command = program(&["serve", "--config"]);
    command.arg(config);
    let server =
        Server::spawn(command, directory, directory.join("nbd.sock"), directory.join("control.sock"));
    server.wait_for_log("listening at tcp:0.0.0.0:");
    let log = server.log();
    let port: String = log.split("listening at tcp:0.0.0.0:").nth(1).unwrap().chars().collect();
    let port = port.chars().take_while(char::is_ascii_digit).collect();
    (server, port)
}

fn uri(directory: &Directory, port: &str, client: &str) -> String {
    format!("nbds://localhost:{port}/vm1?tls-certificates={}", directory.join(client).display())
}

#[test]
fn the_commands_of_the_howto_work_as_they_are_printed() {
    if !clients::present(&["openssl", "nbdinfo", "nbdcopy", "qemu-img", "qemu-nbd"]) {
        return;
    }
    let directory = Directory::new();
    make_certificates(&directory.join(""));
    let (server, port) = start(&directory);
    let line = commands(1).replace("storage.example.org", "localhost").replace("10809", &port);
    let said = shell_succeeds(&directory.join(""), &format!("set -e\n{line}"));
    for expected in ["export-size: 8388608", "virtual size: 8 MiB", "export: 'vm1'"] {
        assert!(said.contains(expected), "\"{expected}\" is not in {said}");
    }
    assert_eq!(std::fs::metadata(directory.join("copy.raw")).unwrap().len(), 8 << 20);
    let plain = clients::run("nbdinfo", &[&format!("nbd://localhost:{port}/vm1")]);
    assert!(!plain.status.success(), "a client without TLS is refused");
    // What the server prints for clients works, too.
    let printed = server.wait_for_line("what it is       nbdinfo 'nbds://");
    let printed = printed.trim_start_matches("what it is").trim();
    let line =
        printed.replace("HOST", "localhost").replace("DIR", directory.join("client").to_str().unwrap());
    assert!(shell_succeeds(&directory.join(""), &line).contains("export-size: 8388608"));
    // Loopback and unix sockets need no TLS here.
    assert!(clients::run("nbdinfo", &[&server.uri("vm1")]).status.success());
    drop(server);
}

#[test]
fn a_reload_renews_certificates_and_keeps_the_old_ones_if_the_new_cannot_be_used() {
    if !clients::present(&["openssl", "nbdinfo"]) {
        return;
    }
    let directory = Directory::new();
    make_certificates(&directory.join(""));
    make_certificates(&directory.join("new"));
    let (server, port) = start(&directory);
    let connects =
        |client: &str| clients::run("nbdinfo", &["--size", &uri(&directory, &port, client)]).status.success();
    assert!(connects("client") && !connects("new/client"));
    assert!(!server.ctl_succeed(&["reload"]).contains("listen.tls"), "nothing has changed");

    // A certificate without its key, then a key that is cut off.
    let key = directory.join("server/server-key.pem");
    let old_key = std::fs::read(&key).unwrap();
    std::fs::copy(directory.join("new/server/server-key.pem"), &key).unwrap();
    let why = server.ctl_fail(1, &["reload"]);
    assert!(why.contains("server-key.pem\": it is not the key of the server's certificate"), "{why}");
    assert!(why.contains("listen.tls.certificates"), "{why}");
    std::fs::write(&key, &old_key[..old_key.len() / 2]).unwrap();
    server.signal("HUP");
    server.wait_for_log("server-key.pem\": its PEM is damaged");
    assert!(connects("client"), "the old certificates are still in use");

    for name in ["server-key.pem", "server-cert.pem", "ca-cert.pem"] {
        std::fs::copy(directory.join("new/server").join(name), directory.join("server").join(name)).unwrap();
    }
    let said = server.ctl_succeed(&["reload"]);
    assert!(said.contains("listen.tls") && said.contains("new certificates, valid until 20"), "{said}");
    assert!(connects("new/client") && !connects("client"));
}

/// The messages of `--check`, for certificates of a directory and of single files.
#[test]
fn certificates_that_cannot_be_used_are_named_with_their_key() {
    if !clients::present(&["openssl"]) {
        return;
    }
    let directory = Directory::new();
    make_certificates(&directory.join(""));
    let path = |name: &str| directory.join(name).display().to_string();
    let check = |listen: &str, expected: &str| {
        let config = configure(&directory, listen);
        let complaint = octavo_fails(&["serve", "--config", &config, "--check"], 2);
        let expected = expected.replace('@', directory.join("").to_str().unwrap().trim_end_matches('/'));
        assert!(complaint.contains(&expected), "{expected}\nis not in\n{complaint}");
    };
    check(
        "certificates = \"@/nowhere\"",
        "octavo.toml:13:16: listen.tls.certificates: \"@/nowhere/server-cert.pem\": it does not exist; it has the \
         certificate",
    );
    let single = |certificate: &str, key: &str, ca: &str| {
        format!("certificate = \"@/{certificate}\"\nkey = \"@/{key}\"\nclient_ca = \"@/{ca}\"")
    };
    let (certificate, key) = ("server/server-cert.pem", "server/server-key.pem");
    check(
        &single(certificate, "client/client-key.pem", "ca-cert.pem"),
        "octavo.toml:14:7: listen.tls.key: \"@/client/client-key.pem\": it is not the key of the server's certificate",
    );
    check(
        &single(key, key, "ca-cert.pem"),
        "octavo.toml:13:15: listen.tls.certificate: \"@/server/server-key.pem\": it has no certificate in PEM",
    );
    check(
        &single(certificate, key, "server"),
        "octavo.toml:15:13: listen.tls.client_ca: \"@/server\": it is not a file",
    );
    std::fs::write(directory.join("empty"), "").unwrap();
    check(
        &(single(certificate, key, "ca-cert.pem") + "\nclient_crl = \"@/empty\""),
        "octavo.toml:16:14: listen.tls.client_crl: \"@/empty\": it has no list of revoked certificates in PEM",
    );

    // The check only warns about a key that every user can read, and an expired certificate.
    std::fs::set_permissions(path(key), Permissions::from_mode(0o644)).unwrap();
    let request = "openssl req -new -key server/server-key.pem -subj /CN=octavo -out old.csr && \
                   sign='openssl x509 -req -in old.csr -CA ca-cert.pem -CAkey ca-key.pem' && \
                   $sign -days 1 -out one.pem && echo subjectAltName=DNS:localhost > names && \
                   $sign -days -1 -extfile names -out old.pem";
    let expired = shell(&directory.join(""), request);
    check(
        &single("one.pem", key, "ca-cert.pem"),
        "listen.tls.certificate: \"@/one.pem\": it cannot be used: it is of X.509 version 1, and only version 3",
    );
    let config = configure(&directory, &single("old.pem", key, "ca-cert.pem"));
    let checked = program(&["serve", "--config", &config, "--check"]).output().unwrap();
    let said = text(&checked.stderr);
    if expired.status.success() {
        assert!(checked.status.success(), "{said}");
        assert!(said.contains("old.pem\": it expired on 20") && said.contains("clients refuse it"), "{said}");
        let chmod = format!("every user can read or write it; `chmod o= {}`", path(key));
        assert!(said.contains(&chmod), "{said}");
    } else {
        println!("SKIP: openssl makes no expired certificate: {}", text(&expired.stderr));
    }
    let open = "certificates = \"@/server\"\nverify_clients = false";
    let checked = program(&["serve", "--config", &configure(&directory, open), "--check"]).output().unwrap();
    assert!(text(&checked.stderr).contains("everyone who reaches the server can read and write"));
}
