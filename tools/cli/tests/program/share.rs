//! Share groups: read-only exports of one image read one set of pages, which no export outside the
//! group can read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::clients;
use crate::control_client::ControlClient;
use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup, program, wait_until};
use crate::vhost::Vmm;

const PAGE: usize = 4096;
const IMAGE_PAGES: usize = 1024;
const IMAGE_BYTES: usize = IMAGE_PAGES * PAGE;

/// How many exports of one image a group has.
const MANY: usize = 64;

/// The partition and the group that most tests use, and a tenant outside.
const GROUP: &str = "[[partition]]\nname = \"bases\"\n[[partition]]\nname = \"tenant\"\n\
                     [[share]]\nname = \"debian\"\npartition = \"bases\"\n";

/// An image whose pages differ.
fn image(directory: &Directory) -> PathBuf {
    let path = directory.join("image.raw");
    std::fs::write(&path, content()).unwrap();
    path
}

fn content() -> Vec<u8> {
    (0..IMAGE_BYTES / 8)
        .flat_map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

fn member(name: &str, path: &Path, more: &str) -> String {
    let path = path.display();
    format!(
        "[[export]]\nname = \"{name}\"\npath = \"{path}\"\nshare = \"debian\"\nread_only = true\n{more}\n"
    )
}

fn add(server: &Server, name: &str, path: &Path, home: [&str; 2]) -> String {
    let path = path.to_str().unwrap();
    server.ctl_succeed(&["export", "add", name, "--path", path, home[0], home[1], "--read-only"])
}

fn partition(server: &Server, name: &str) -> Value {
    let stat = server.stat();
    let found = stat["partitions"].as_array().unwrap().iter().find(|partition| partition["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {stat}")).clone()
}

/// The names of a partition's objects, each with the names of the exports that share it.
fn objects(server: &Server, name: &str) -> Vec<(String, Vec<String>)> {
    let text = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let objects = partition(server, name)["objects"].as_array().unwrap().clone();
    let exports = |object: &Value| object["exports"].as_array().into_iter().flatten().map(text).collect();
    objects.iter().map(|object| (text(object), exports(object))).collect()
}

#[test]
fn sixty_four_exports_of_one_image_take_the_memory_of_one() {
    let directory = Directory::new();
    let image = image(&directory);
    let socket = |number: usize| directory.join(&format!("{number}.sock"));
    let mut listen = GROUP.to_owned();
    for number in 0..MANY {
        let attach = format!("attach = [\"nbd\", \"vhost-user:{}\"]", socket(number).display());
        listen += &member(&format!("vm{number}"), &image, &attach);
    }
    // Pages of 64 private exports would have room.
    let setup =
        Setup { memory_max: "1GiB", listen: &listen, serve: "connections_max = 200", ..Setup::default() };
    let server = Server::start(&directory, &setup);
    let mut vmms: Vec<Vmm> = Vec::new();
    let read_all =
        |vmm: &mut Vmm| (0..IMAGE_BYTES).step_by(64 << 10).for_each(|at| vmm.read(at as u64, 64 << 10));
    vmms.push(Vmm::connect_as(&socket(0), true));
    read_all(&mut vmms[0]);
    let (rss, first) = (server.memory("Rss"), partition(&server, "bases"));
    assert_eq!((&first["fills"], &first["resident_bytes"]), (&IMAGE_PAGES.into(), &IMAGE_BYTES.into()));

    for number in 1..MANY {
        vmms.push(Vmm::connect_as(&socket(number), true));
        read_all(&mut vmms[number]);
    }
    let expected = content();
    let mut clients = Vec::new();
    for number in 0..MANY {
        let mut client = Client::connect(&server.nbd, &format!("vm{number}")).unwrap();
        assert!(client.read(0, IMAGE_BYTES) == expected, "vm{number} reads other bytes");
        clients.push(client);
    }
    let bases = partition(&server, "bases");
    for (key, count) in [("fills", IMAGE_PAGES), ("resident_bytes", IMAGE_BYTES), ("bypasses", 0)] {
        assert_eq!(bases[key], count, "{key}: {bases}");
    }
    assert_eq!(bases["read_bytes"], 2 * MANY * IMAGE_BYTES);
    assert_eq!(bases["misses"], first["misses"], "{bases}");
    let image = &bases["objects"][0];
    assert_eq!((bases["objects"].as_array().unwrap().len(), &image["name"]), (1, &json!("debian/image.raw")));
    assert_eq!((&image["connections"], &image["share"]), (&json!(2 * MANY), &json!("debian")));
    assert_eq!(image["exports"].as_array().unwrap().len(), MANY);
    for export in image["exports"].as_array().unwrap() {
        assert_eq!((&export["connections"], &export["read_bytes"]), (&json!(2), &json!(2 * IMAGE_BYTES)));
    }
    // Each disk has threads, rings and memory that is shared with its VMM, but no pages.
    let grown = server.memory("Rss").saturating_sub(rss);
    assert!(grown < (MANY * IMAGE_BYTES / 4) as u64, "the process has grown by {grown} bytes");
}

/// Another program changes the file while the group has the old page cached. Exports outside the
/// group must read the new bytes from the file.
#[test]
fn exports_outside_a_group_never_read_its_pages() {
    let directory = Directory::new();
    let image = image(&directory);
    let link = directory.join("link.raw");
    std::fs::hard_link(&image, &link).unwrap();
    let other = "[[share]]\nname = \"other\"\npartition = \"bases\"\n";
    let private = |name: &str, partition: &str| {
        let path = link.display();
        format!(
            "[[export]]\nname = \"{name}\"\npath = \"{path}\"\npartition = \"{partition}\"\nread_only = true\n"
        )
    };
    let apart = member("apart", &image, "").replace("debian", "other");
    let listen = [
        GROUP,
        other,
        &member("one", &image, ""),
        &member("two", &link, ""),
        &apart,
        &private("private", "tenant"),
        &private("beside", "bases"),
    ]
    .concat();
    let server = Server::start(&directory, &Setup { listen: &listen, ..Setup::default() });
    let read = |export: &str| Client::connect(&server.nbd, export).unwrap().read(0, PAGE);
    let old = content()[..PAGE].to_vec();
    let new = vec![0xa5; PAGE];
    assert!(read("one") == old);
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(&new, 0).unwrap();
    file.sync_all().unwrap();

    let (fills, idle) = (partition(&server, "bases")["fills"].clone(), partition(&server, "tenant"));
    assert_eq!((&idle["fills"], &idle["resident_bytes"]), (&json!(0), &json!(0)));
    assert!(read("two") == old, "a member was not served the group's page");
    assert_eq!(partition(&server, "bases")["fills"], fills, "a member has read the store again");
    assert!(read("private") == new, "a tenant outside was served a page of the group");
    let tenant = partition(&server, "tenant");
    assert_eq!((&tenant["hits"], &tenant["misses"]), (&json!(0), &json!(1)), "{tenant}");
    // The same partition is not the same group.
    assert!(read("beside") == new, "an export without the group was served a page of the group");
    assert!(read("apart") == new, "another group was served a page of the group");
    assert!(read("one") == old, "the group was served a page of another");
    let expected =
        [("debian/image.raw", vec!["one", "two"]), ("other/image.raw", vec!["apart"]), ("beside", vec![])];
    let mut found = objects(&server, "bases");
    found.sort();
    let mut expected = expected
        .map(|(name, exports)| (name.to_owned(), exports.into_iter().map(str::to_owned).collect::<Vec<_>>()));
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(objects(&server, "tenant"), [("private".to_owned(), vec![])]);
}

#[test]
fn members_come_and_go_and_the_last_one_closes_the_image() {
    let directory = Directory::new();
    let image = image(&directory);
    let (hard, soft) = (directory.join("hard"), directory.join("soft"));
    std::fs::hard_link(&image, &hard).unwrap();
    std::os::unix::fs::symlink(&image, &soft).unwrap();
    let listen = format!("metrics = \"127.0.0.1:0\"\n{GROUP}{}", member("one", &image, ""));
    let server = Server::start(&directory, &Setup { listen: &listen, ..Setup::default() });
    let said = add(&server, "two", &hard, ["--share", "debian"]);
    assert!(said.contains("4 MiB, in partition \"bases\""), "{said}");
    let mut two = Client::connect(&server.nbd, "two").unwrap();
    assert!(two.read(0, IMAGE_BYTES) == content());
    let answer = server.ctl_json(&[
        "export",
        "add",
        "three",
        "--path",
        soft.to_str().unwrap(),
        "--share",
        "debian",
        "--read-only",
    ]);
    assert_eq!((&answer["share"], &answer["partition"]), (&json!("debian"), &json!("bases")));
    let members = || objects(&server, "bases")[0].1.clone();
    assert_eq!(
        (objects(&server, "bases").len(), members()),
        (1, vec!["one".into(), "two".into(), "three".into()])
    );
    let table = server.ctl_succeed(&["stat"]);
    assert!(
        table.contains("SHARE")
            && table.lines().any(|line| line.starts_with("three ") && line.ends_with("debian")),
        "{table}"
    );
    let metrics =
        || crate::metrics::ask(&server.metrics_address(), "GET /metrics", &server.metrics_address());
    let page = metrics();
    let line = "octavo_image_exports{share=\"debian\",image=\"debian/image.raw\"} 3\n";
    assert!(page.contains(line), "{page}");
    // The image is one object, under its own name.
    server.ctl_succeed(&["advise", "bases", "debian/image.raw", "normal"]);

    let used = server.ctl_fail(1, &["partition", "remove", "bases"]);
    assert!(used.contains("\"one\", \"two\", \"three\""), "{used}");
    // The first member leaves: the others keep its pages.
    server.ctl_succeed(&["export", "remove", "one"]);
    server.ctl_succeed(&["export", "remove", "three"]);
    assert_eq!(members(), ["two"]);
    assert!(two.read(0, IMAGE_BYTES) == content());
    let bases = partition(&server, "bases");
    assert_eq!((&bases["fills"], &bases["resident_bytes"]), (&IMAGE_PAGES.into(), &IMAGE_BYTES.into()));
    let path = image.to_str().unwrap();
    let writable = ["export", "add", "new", "--path", path, "--partition", "tenant"];
    assert!(server.ctl_fail(1, &writable).contains("is exported already, as \"two\""));

    drop(two);
    wait_until(|| "the client leaves".into(), || server.stat()["connections"] == 0);
    server.ctl_succeed(&["export", "remove", "two"]);
    let bases = partition(&server, "bases");
    assert_eq!((&bases["objects"], &bases["resident_bytes"]), (&json!([]), &json!(0)));
    assert!(!metrics().contains("octavo_image_exports{"));
    // The image is closed and unlocked.
    server.ctl_succeed(&writable);
    server.ctl_succeed(&["partition", "remove", "bases"]);
    assert!(!server.log().contains("stays locked"), "{}", server.log());
}

#[test]
fn an_export_that_cannot_be_shared_is_refused_with_the_reason() {
    let directory = Directory::new();
    let image = image(&directory);
    let server = Server::start(&directory, &Setup { listen: GROUP, ..Setup::default() });
    server.wait_for_log("no export is in the share group \"debian\"");
    let path = image.to_str().unwrap();
    let add = |more: &[&str], status| {
        server.ctl_fail(status, &[&["export", "add", "new", "--path", path], more].concat())
    };
    assert!(add(&["--share", "debian"], 1).contains("only read-only exports share pages in \"debian\""));
    let said = add(&["--share", "debain", "--read-only"], 1);
    assert!(
        said.contains("no share group is called \"debain\"; did you mean \"debian\"? known: debian"),
        "{said}"
    );
    assert!(add(&["--share", "debian", "--partition", "p"], 2).contains("cannot be used with"));
    assert!(add(&[], 2).contains("--partition <PARTITION>"));
    let mut control = ControlClient::connect(&server.control);
    let mut refusal = |request| control.ask(request)["error"]["message"].as_str().unwrap().to_owned();
    let values = json!([["path", path], ["partition", "p"], ["share", "debian"], ["read_only", "true"]]);
    let said = refusal(json!({"do": "export-add", "object": "new", "values": values}));
    assert!(said.contains("the share group \"debian\" has a partition of its own"), "{said}");
    let values = json!([["path", path]]);
    let said = refusal(json!({"do": "export-add", "object": "new", "values": values}));
    assert!(said.contains("export.partition: missing"), "{said}");
    // A refused export leaves nothing behind.
    let socket_is_in_use = ["export", "add", "disk", "--path", path, "--share", "debian", "--read-only"];
    assert!(server.ctl_fail(1, &socket_is_in_use).contains("there is an export \"disk\" already"));
    assert_eq!(objects(&server, "bases"), []);
}

#[test]
fn a_reload_adds_removes_and_moves_members() {
    let directory = Directory::new();
    let image = image(&directory);
    let base = format!(
        "[cache]\nmemory_max = \"48MiB\"\n{GROUP}[[share]]\nname = \"other\"\npartition = \"tenant\"\n\
         [listen]\nnbd = \"unix:{dir}/nbd.sock\"\ncontrol = \"unix:{dir}/control.sock\"\n",
        dir = directory.join("").display().to_string().trim_end_matches('/'),
    );
    let (one, two) = (member("one", &image, ""), member("two", &image, ""));
    let file = directory.join("octavo.toml");
    let write = |text: &[&str]| std::fs::write(&file, text.concat()).unwrap();
    write(&[&base, &one]);
    let mut command = program(&["serve", "--config"]);
    command.arg(&file);
    let server =
        Server::spawn(command, &directory, directory.join("nbd.sock"), directory.join("control.sock"));
    let reload = || server.ctl_succeed(&["reload"]);
    let mut client = Client::connect(&server.nbd, "one").unwrap();
    assert!(client.read(0, IMAGE_BYTES) == content());
    let shared = |names: &[&str]| {
        vec![("debian/image.raw".to_owned(), names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())]
    };
    let fills = |name: &str| partition(&server, name)["fills"].clone();

    write(&[&base, &one, &two]);
    assert_eq!(reload(), "export \"two\": added\n");
    assert_eq!(objects(&server, "bases"), shared(&["one", "two"]));
    // A changed member is removed and added again: the image stays open.
    let described = member("two", &image, "description = \"second\"");
    write(&[&base, &one, &described]);
    assert!(reload().contains("export \"two\": changed"));
    assert!(Client::connect(&server.nbd, "two").unwrap().read(0, IMAGE_BYTES) == content());
    assert_eq!((objects(&server, "bases"), fills("bases")), (shared(&["one", "two"]), IMAGE_PAGES.into()));
    // It moves to another group, whose partition reads the image anew.
    write(&[&base, &one, &two.replace("debian", "other")]);
    assert!(reload().contains("export \"two\": changed"));
    assert_eq!(objects(&server, "bases"), shared(&["one"]));
    assert_eq!(objects(&server, "tenant")[0], ("other/image.raw".to_owned(), vec!["two".to_owned()]));
    assert!(Client::connect(&server.nbd, "two").unwrap().read(0, PAGE) == content()[..PAGE]);
    assert_ne!(fills("tenant"), json!(0));
    assert!(client.read(0, IMAGE_BYTES) == content());
    assert_eq!(fills("bases"), IMAGE_PAGES);

    // The group gets another partition: its members move.
    let moved =
        base.replace("name = \"debian\"\npartition = \"bases\"", "name = \"debian\"\npartition = \"tenant\"");
    write(&[&moved, &one]);
    assert!(server.ctl_fail(1, &["reload"]).contains("\"one\" is in use by client"));
    drop(client);
    wait_until(|| "the client leaves".into(), || server.stat()["connections"] == 0);
    let said = reload();
    assert!(
        said.contains("share \"debian\": partition bases -> tenant")
            && said.contains("export \"one\": changed"),
        "{said}"
    );
    assert_eq!((objects(&server, "bases"), objects(&server, "tenant")), (vec![], shared(&["one"])));
    assert_eq!(reload(), "nothing has changed\n");

    // A member that `octavo ctl` added keeps its group.
    add(&server, "guest", &image, ["--share", "debian"]);
    let gone = moved.replace("[[share]]\nname = \"debian\"\npartition = \"tenant\"\n", "");
    for text in [&gone, &base] {
        write(&[text, &one.replace("debian", "other")]);
        let said = server.ctl_fail(1, &["reload"]);
        assert!(
            said.contains("the share group \"debian\"")
                && said.contains("\"guest\", which `octavo ctl` added"),
            "{said}"
        );
    }
    assert_eq!(objects(&server, "tenant"), shared(&["one", "guest"]));
    server.ctl_succeed(&["export", "remove", "guest"]);
    write(&[&gone, &one.replace("debian", "other")]);
    let said = reload();
    assert!(said.contains("share \"debian\": removed"), "{said}");
    assert_eq!(objects(&server, "tenant")[0].0, "other/image.raw");
}

/// The command lines are those of docs/VM.md.
#[test]
fn a_qcow2_overlay_on_a_shared_base_has_the_writes_of_its_own_guest() {
    if !clients::present(&["qemu-img", "qemu-io"]) {
        return;
    }
    let directory = Directory::new();
    let image = image(&directory);
    let listen = [GROUP, &member("vm1-base", &image, ""), &member("vm2-base", &image, "")].concat();
    let server = Server::start(&directory, &Setup { listen: &listen, ..Setup::default() });
    let socket = server.nbd.display();
    for vm in ["vm1", "vm2"] {
        let base = format!("nbd+unix:///{vm}-base?socket={socket}");
        let line = format!("qemu-img create -f qcow2 -F raw -b '{base}' {vm}.qcow2");
        clients::shell_succeeds(&directory.join(""), &line);
    }
    for line in [
        "qemu-io -f qcow2 -c 'write -P 0x5a 1M 64k' -c 'read -P 0x5a 1M 64k' -c flush vm1.qcow2",
        "qemu-img check vm1.qcow2",
        "qemu-img convert -f qcow2 -O raw vm1.qcow2 vm1.raw",
        "qemu-img convert -f qcow2 -O raw vm2.qcow2 vm2.raw",
        &format!("qemu-img compare -f qcow2 -F raw vm2.qcow2 'nbd+unix:///vm2-base?socket={socket}'"),
    ] {
        clients::shell_succeeds(&directory.join(""), line);
    }
    let mut expected = content();
    assert!(std::fs::read(directory.join("vm2.raw")).unwrap() == expected);
    expected[1 << 20..][..64 << 10].fill(0x5a);
    assert!(std::fs::read(directory.join("vm1.raw")).unwrap() == expected);
    assert!(std::fs::read(&image).unwrap() == content(), "the base has changed");
    assert_eq!(partition(&server, "bases")["fills"], IMAGE_PAGES);
}
