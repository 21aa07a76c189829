//! Exports that come and go while the server runs.

use crate::client::*;
use crate::rig::{Directory, Plan, Rig, eventually, pattern};
use octavo::disk::{Backend, IoRequest, Op, Store};
use octavo::{Cache, CacheConfig, PartitionConfig};
use octavo_block::{Address, Error, Export, Limits, Server};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const LIST: u32 = 3;
const GO: u32 = 7;
const SERVER: u32 = 2;
const GRACE: Option<Duration> = Some(Duration::from_secs(5));

/// The names that a client finds in the list of exports.
fn listed(rig: &Rig) -> Vec<String> {
    let mut client = rig.client();
    client.greet(3);
    client.option(LIST, &[]);
    let mut names = Vec::new();
    loop {
        let (kind, data) = client.option_reply(LIST);
        if kind != SERVER {
            assert_eq!(kind, ACK);
            return names;
        }
        let len = u32::from_be_bytes(data[..4].try_into().unwrap()) as usize;
        names.push(String::from_utf8(data[4..4 + len].to_vec()).unwrap());
    }
}

/// Whether a client is refused with `ERR_UNKNOWN`.
fn is_unknown(rig: &Rig, name: &str) -> bool {
    let mut client = rig.client();
    client.greet(3);
    client.option(GO, &info_data(name.as_bytes(), &[]));
    client.option_reply(GO).0 == UNKNOWN
}

#[test]
fn an_export_that_is_added_is_found_at_once_and_one_that_is_removed_is_not() {
    let rig = Rig::new(Plan::default());
    let more = || Export {
        name: "more".into(),
        description: String::new(),
        object: rig.objects[0].clone(),
        read_only: false,
        is_listed: true,
    };
    for _ in 0..3 {
        assert!(is_unknown(&rig, "more"));
        rig.server().add(more()).unwrap();
        assert_eq!(listed(&rig), ["disk0", "disk1", "more"]);
        let twice = rig.server().add(more()).unwrap_err().to_string();
        assert!(twice.contains("another export has the same name"), "{twice}");
        rig.attached("more", false).read(false, 0, 0, 4096).unwrap();
        rig.server().retire("more", GRACE).unwrap().remove();
        assert_eq!(listed(&rig), ["disk0", "disk1"]);
        assert_eq!(rig.traffic().exports().len(), 2);
    }
    let unknown = rig.server().retire("more", None).err().unwrap().to_string();
    assert!(unknown.contains("there is no such export"), "{unknown}");
}

#[test]
fn the_next_export_has_the_empty_name_when_the_first_is_retired() {
    let rig = Rig::new(Plan::default());
    let retired = rig.server().retire("disk0", None).unwrap();
    assert_eq!(retired.object().name(), "disk0");
    assert_eq!(listed(&rig), ["disk1"]);
    let (_, flags) = rig.client().enter("", false);
    assert!(flags & 2 != 0, "disk1 is read-only");
    let twice = rig.server().retire("disk0", GRACE).err().unwrap().to_string();
    assert!(twice.contains("being removed already"), "{twice}");
    drop(retired);
    assert_eq!(listed(&rig), ["disk0", "disk1"]);
}

#[test]
fn an_export_with_clients_is_retired_only_if_they_may_be_disconnected() {
    let rig = Rig::new(Plan::default());
    let mut client = rig.attached("disk0", false);
    let mut other = rig.attached("disk1", false);
    let error = rig.server().retire("disk0", None).err().unwrap();
    let Error::InUse { name, clients } = &error else { panic!("{error}") };
    assert_eq!((name.as_str(), clients.len()), ("disk0", 1));
    let me = format!("(process {})", std::process::id());
    assert!(clients[0].starts_with("client 1 at unix:") && clients[0].ends_with(&me), "{clients:?}");
    assert_eq!(client.read(false, 0, 0, 4096).unwrap(), pattern(4096));

    rig.server().retire("disk0", GRACE).unwrap().remove();
    client.expect_end();
    assert!(is_unknown(&rig, "disk0"));
    assert_eq!(other.read(false, 0, 0, 4096).unwrap(), pattern(4096));
}

/// The client has sent the header of a write, and half of its bytes.
#[test]
fn a_client_in_the_middle_of_a_write_is_cut_when_its_grace_is_over() {
    let rig = Rig::new(Plan::default());
    let mut client = rig.attached("disk0", false);
    assert_eq!(client.put(0, 1, 0, &[7; 4096]), 0);
    client.send(&write_bytes(0, 2, 8192, &[8; 4096])[..28 + 2048]);
    // Had the server not seen the header yet, it would refuse the write.
    eventually("the write begins", || rig.traffic().exports()[0].in_flight == 1);
    let retired = rig.server().retire("disk0", Some(Duration::from_millis(100))).unwrap();
    client.expect_end();
    // A write that was answered stays.
    let mut found = [0; 4096];
    retired.object().read_at(0, &mut found).unwrap();
    assert_eq!(found, [7; 4096]);
}

/// A read-only image of one byte, which counts the bytes that are read from it.
#[derive(Default)]
struct Image {
    byte: AtomicU8,
    read_bytes: AtomicU64,
}

/// The back end of a store of the image.
struct Reads(Arc<Image>);

impl Backend for Reads {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(IMAGE_BYTES)
    }

    fn submit(&self, mut request: IoRequest) {
        assert_eq!(request.op(), Op::Read);
        let len = request.len_bytes();
        self.0.read_bytes.fetch_add(len as u64, SeqCst);
        request.copy_in(0, &vec![self.0.byte.load(SeqCst); len]);
        request.complete(Ok(len));
    }

    fn read_only(&self) -> bool {
        true
    }
}

const IMAGE_BYTES: u64 = 1 << 20;

/// All exports of one object share its pages, so the store is read once. An export of another
/// object with the same bytes reads the store again.
#[test]
fn exports_that_share_an_object_read_one_set_of_pages_and_other_exports_read_the_store() {
    let (directory, image) = (Directory::new(), Arc::new(Image::default()));
    let cache = Cache::new(CacheConfig::default()).unwrap();
    let partition = |name| cache.partition(PartitionConfig::new(name)).unwrap();
    let (bases, tenant) = (partition("bases"), partition("tenant"));
    let open = |partition: &octavo::Partition, name| {
        partition.open(Store::from_backend("image", Reads(image.clone())).unwrap(), name).unwrap()
    };
    let (shared, private) = (open(&bases, "shared"), open(&tenant, "private"));
    let export = |name: String, object: &octavo::Object| Export {
        name,
        description: String::new(),
        object: object.clone(),
        read_only: true,
        is_listed: true,
    };
    let members = (0..64).map(|number| export(format!("vm{number}"), &shared));
    let exports = members.chain([export("private".into(), &private)]).collect();
    let socket = directory.0.join("socket");
    let listen = [Address::Unix(socket.clone())];
    let _server = Server::start(cache.clone(), exports, &listen, Limits::default()).unwrap();
    let read = |name: &str| {
        let mut client = Client::unix(&socket);
        client.enter(name, false);
        client.read(false, 0, 0, IMAGE_BYTES as u32).unwrap()
    };
    let resident = |object: &octavo::Object| object.resident_bytes(0, IMAGE_BYTES).unwrap();

    assert!(read("vm0") == vec![0; IMAGE_BYTES as usize]);
    image.byte.store(1, SeqCst);
    for number in 1..64 {
        assert!(read(&format!("vm{number}")) == vec![0; IMAGE_BYTES as usize], "vm{number}");
    }
    assert_eq!(image.read_bytes.load(SeqCst), IMAGE_BYTES, "a page was read from the store again");
    assert_eq!((resident(&shared), resident(&private)), (IMAGE_BYTES, 0));
    assert!((0..IMAGE_BYTES).step_by(4096).all(|page| !private.is_resident(page)));

    assert!(read("private") == vec![1; IMAGE_BYTES as usize], "a private export was served shared pages");
    assert_eq!(image.read_bytes.load(SeqCst), 2 * IMAGE_BYTES);
    assert_eq!((tenant.stat().hits, tenant.stat().misses), (0, IMAGE_BYTES / 4096));
    assert_eq!((resident(&shared), resident(&private)), (IMAGE_BYTES, IMAGE_BYTES));
    assert_eq!(bases.stat().resident_bytes, IMAGE_BYTES);
}
