//! The length of an export changes while it is served: `octavo ctl export resize`.

use std::fs::File;
use std::path::Path;

use serde_json::json;

use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup, served, wait_until};

const LEN: u64 = 4 << 20;

fn set_len(path: &Path, len_bytes: u64) {
    File::options().write(true).open(path).unwrap().set_len(len_bytes).unwrap();
}

fn len_of(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

/// The length that `octavo ctl stat` shows for the first object.
fn shown(server: &Server) -> u64 {
    server.stat()["partitions"][0]["objects"][0]["len_bytes"].as_u64().unwrap()
}

#[test]
fn a_file_that_has_grown_is_adopted_and_one_that_has_not_can_be_lengthened() {
    let (directory, server) = served(&Setup { disk_bytes: LEN, ..Setup::default() });
    let disk = directory.join("disk");
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(LEN - 512, &[1; 512]);
    set_len(&disk, 2 * LEN);
    server.wait_for_log("`octavo ctl export resize` adopts the new length");
    // It is not adopted before.
    assert_eq!(shown(&server), LEN);
    let said = server.ctl_succeed(&["export", "resize", "disk"]);
    assert_eq!(said, "export \"disk\" is resized: 4194304 bytes -> 8388608 bytes\n");
    assert_eq!(
        server.ctl_succeed(&["export", "resize", "disk"]),
        "export \"disk\" has 8388608 bytes, as before\n"
    );
    assert_eq!(client.read(LEN - 512, 512), [1; 512]);
    let mut again = Client::connect(&server.nbd, "disk").unwrap();
    again.write(2 * LEN - 512, &[2; 512]);
    assert_eq!(again.read(LEN, 512), [0; 512]);

    let answer = server.ctl_json(&["export", "resize", "disk", "12MiB"]);
    assert_eq!(answer, json!({"name": "disk", "former_len_bytes": 2 * LEN, "len_bytes": 3 * LEN}));
    assert_eq!((len_of(&disk), shown(&server)), (3 * LEN, 3 * LEN));
    let mut last = Client::connect(&server.nbd, "disk").unwrap();
    last.write(3 * LEN - 512, &[3; 512]);
    assert_eq!(last.flush(), 0);
    drop((client, again, last));
    server.stop();
    let bytes = std::fs::read(&disk).unwrap();
    assert_eq!(bytes.len() as u64, 3 * LEN);
    for (number, byte) in [(1, 1), (2, 2), (3, 3)] {
        assert_eq!(bytes[number * LEN as usize - 512..][..512], [byte; 512]);
    }
}

#[test]
fn an_export_becomes_shorter_only_if_it_may() {
    let (directory, server) = served(&Setup { disk_bytes: LEN, ..Setup::default() });
    let disk = directory.join("disk");
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(LEN - 4096, &[1; 4096]);
    let said = server.ctl_fail(1, &["export", "resize", "disk", "1MiB"]);
    assert!(said.contains("4194304 bytes -> 1048576 bytes; all data past the new end is lost"), "{said}");
    assert!(said.contains("--shrink"), "{said}");
    set_len(&disk, LEN / 2);
    let said = server.ctl_fail(1, &["export", "resize", "disk"]);
    assert!(said.contains("4194304 bytes -> 2097152 bytes"), "{said}");
    assert_eq!(client.read(LEN - 4096, 4096), [1; 4096]);
    // The file is longer than the export: a size between them would cut the file.
    set_len(&disk, 2 * LEN);
    let said = server.ctl_fail(1, &["export", "resize", "disk", "6MiB"]);
    assert!(said.contains("8388608 bytes -> 6291456 bytes"), "{said}");
    assert_eq!((len_of(&disk), shown(&server)), (2 * LEN, LEN));

    server.ctl_succeed(&["export", "resize", "disk", "1MiB", "--shrink"]);
    assert_eq!((len_of(&disk), shown(&server)), (1 << 20, 1 << 20));
    set_len(&disk, 1 << 19);
    server.ctl_succeed(&["export", "resize", "disk", "--shrink"]);
    assert_eq!(shown(&server), 1 << 19);
    // What was cut off does not come back.
    server.ctl_succeed(&["export", "resize", "disk", "4MiB"]);
    assert_eq!(Client::connect(&server.nbd, "disk").unwrap().read(LEN - 4096, 4096), [0; 4096]);
    assert!(server.ctl_fail(1, &["export", "resize", "dsk"]).contains("did you mean \"disk\"?"));
    assert!(server.ctl_fail(2, &["export", "resize", "disk", "4MiX"]).contains("unknown unit"));
}

#[test]
fn exports_that_share_an_image_are_resized_together() {
    let directory = Directory::new();
    let image = directory.disk("image", LEN);
    let member = |name: &str| {
        let path = image.display();
        format!("[[export]]\nname = \"{name}\"\npath = \"{path}\"\nshare = \"group\"\nread_only = true\n")
    };
    let listen =
        ["[[share]]\nname = \"group\"\npartition = \"p\"\n", &member("one"), &member("two")].concat();
    let server = Server::start(&directory, &Setup { listen: &listen, exports: &[], ..Setup::default() });
    let said = server.ctl_fail(1, &["export", "resize", "one", "8MiB"]);
    assert!(said.contains("export \"one\" is read-only; change the length of "), "{said}");
    set_len(&image, 2 * LEN);
    server.ctl_succeed(&["export", "resize", "one"]);
    for name in ["one", "two"] {
        assert_eq!(Client::connect(&server.nbd, name).unwrap().read(2 * LEN - 512, 512), [0; 512]);
    }
    wait_until(|| "the clients leave".into(), || server.stat()["connections"] == 0);
    server.ctl_succeed(&["export", "remove", "one"]);
    assert_eq!(
        server.ctl_succeed(&["export", "resize", "two"]),
        "export \"two\" has 8388608 bytes, as before\n"
    );
}
