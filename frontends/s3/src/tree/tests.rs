//! Listings from servers that are slow, and from servers that lie.

use std::collections::HashMap;
use std::sync::mpsc;

use octavo::{Cache, CacheConfig, PartitionConfig};
use octavo_objects::ObjectsConfig;
use octavo_s3_stub::{Lie, Lies, Operation, Stub, StubConfig};

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// A bucket with a directory `d`, as a tree.
struct Server {
    stub: Stub,
    cache: Cache,
    tree: Tree,
}

fn config() -> ObjectsConfig {
    // A busy machine does not look like a silent server.
    ObjectsConfig { patience: Duration::from_secs(30), deadline: 2 * MINUTE, ..ObjectsConfig::default() }
}

impl Server {
    fn new(valid: Duration) -> Server {
        Server::with(Stub::start(Lies::none()), valid, config(), 64 << 20, &[])
    }

    fn with(
        stub: Stub,
        valid: Duration,
        config: ObjectsConfig,
        memory_max_bytes: u64,
        redirect_hosts: &[&str],
    ) -> Server {
        let cache = Cache::new(CacheConfig { memory_max_bytes, ..CacheConfig::default() }).unwrap();
        let fetcher = Fetcher::new(&cache, config).unwrap();
        let client = Client::of_test("bucket", &stub.endpoint(), redirect_hosts);
        Server { stub, cache, tree: Tree::new(fetcher, client, "d", valid) }
    }

    fn list(&self) -> Result<Arc<Listing>, Error> {
        self.tree.entries(&"d".into())
    }

    fn names(&self, key: &str) -> Vec<String> {
        let listing = self.tree.entries(&key.into()).unwrap();
        (0..listing.len()).map(|number| listing.entry(number).unwrap().0.to_owned()).collect()
    }

    fn look_up(&self, name: &str) -> Result<(u64, Node), Error> {
        self.tree.look_up("d", name, &*self.list()?)
    }

    fn lists(&self) -> u64 {
        self.stub.counts().of(Operation::List)
    }

    /// A version of an object, of which the server is not asked.
    fn store(&self, key: &str, e_tag: String, size: u64) -> octavo::Object {
        let version = octavo_objects::Version { e_tag: Some(e_tag), ..Default::default() };
        let meta = Meta { size, version, details: None };
        let store = self.tree.client().open(self.tree.fetcher(), key, meta).unwrap();
        self.cache.partition(PartitionConfig::new("objects")).unwrap().open(store, key).unwrap()
    }

    fn set_lie(&self, lie: Lie) {
        self.stub.set_lies(Lies::with(move |_| Some(lie.clone())));
    }
}

#[test]
fn odd_keys_are_left_out_and_markers_are_directories() {
    let server = Server::new(MINUTE);
    let good = ["good", "sub/", "sub/part", "sub/deeper/", "empty/", "a b+c%2e&<>", "hidden", "hidden/x"];
    let odd = [".", "..", "./here", "../up", "/x", "ctl\u{1}", "tab\t", "new\nline", "del\u{7f}"];
    for key in good.iter().chain(&odd) {
        server.stub.put(&format!("bucket/d/{key}"), "bytes");
    }
    server.stub.put("bucket/d/", "");
    assert_eq!(server.names("d"), ["a b+c%2e&<>", "empty", "good", "hidden", "sub"]);
    assert_eq!(server.names("d/sub"), ["deeper", "part"]);
    assert_eq!(server.names("d/empty"), [""; 0]);
    assert_eq!(server.names("d/sub/deeper"), [""; 0]);
    // `hidden` is a directory, and hides the file of its name.
    let left_out = odd.len() as u64 + 1;
    assert_eq!(server.tree.fetcher().stat().keys_left_out, left_out);
    // A further listing does not count them again, but counts what is new.
    server.tree.doubt("d/good");
    server.stub.put("bucket/d/./there", "");
    server.stub.put("bucket/d/\u{2}", "");
    server.list().unwrap();
    assert_eq!(server.tree.fetcher().stat().keys_left_out, left_out + 1, "`./` was left out before");
    assert_eq!(server.look_up("good").unwrap().0, ROOT + 1);
    assert_eq!(server.look_up("x").unwrap_err().kind(), ErrorKind::NotFound);
}

/// A listing that took longer than it was believed was asked for again by every request.
#[test]
fn a_listing_is_asked_for_once_by_all_who_wait_for_it() {
    let server = Server::new(Duration::from_millis(1));
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    server.stub.set_lies(Lies::with(move |asked| {
        if asked.number == 1 {
            // The server holds the first page back until all are waiting.
            let _ = lock(&gate).recv_timeout(MINUTE);
        }
        Some(Lie::Keys(100_000))
    }));
    let key: Arc<str> = "d".into();
    const READERS: usize = 8;
    let waiting = |server: &Server| {
        // The map and the thread that asks have one each.
        lock(&server.tree.state).flights.get(&key).map_or(0, |flight| Arc::strong_count(flight) - 1)
    };
    let counts = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(|| server.list().unwrap().len())).collect();
        let begun = Instant::now();
        while waiting(&server) < READERS && begun.elapsed() < MINUTE {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(waiting(&server), READERS);
        open.send(()).unwrap();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(counts, [100_000; READERS]);
    assert_eq!(server.lists(), 100);
}

/// With `valid` zero, a request is answered by a listing that began after it.
#[test]
fn a_listing_that_nobody_believes_is_asked_for_anew() {
    let server = Server::new(Duration::ZERO);
    server.stub.put("bucket/d/a", "");
    assert_eq!(server.names("d"), ["a"]);
    server.stub.put("bucket/d/b", "");
    assert_eq!(server.names("d"), ["a", "b"]);
    assert_eq!(server.lists(), 2);
}

/// `patience` ended listings of many pages, though the server answered each one at once.
#[test]
fn patience_is_for_silence_and_not_for_the_whole_listing() {
    let (patience, page) = (Duration::from_secs(3), Duration::from_millis(400));
    let stub = Stub::start_with(StubConfig { first_byte: page, ..StubConfig::default() }).unwrap();
    let config = ObjectsConfig { patience, deadline: 2 * MINUTE, ..config() };
    let server = Server::with(stub, MINUTE, config, 64 << 20, &[]);
    server.set_lie(Lie::Keys(10_000));
    let begun = Instant::now();
    assert_eq!(server.list().unwrap().len(), 10_000);
    assert!(begun.elapsed() > patience);
}

#[test]
fn the_deadline_ends_a_listing_that_is_too_slow() {
    let stub =
        Stub::start_with(StubConfig { first_byte: Duration::from_millis(100), ..StubConfig::default() });
    let second = Duration::from_secs(1);
    let config = ObjectsConfig { patience: second, deadline: second, ..config() };
    let server = Server::with(stub.unwrap(), MINUTE, config, 64 << 20, &[]);
    server.set_lie(Lie::Keys(1_000_000));
    let error = server.list().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(server.lists() < 100, "{}", server.lists());
}

#[test]
fn a_listing_without_end_ends_where_memory_does() {
    let server = Server::with(Stub::start(Lies::none()), MINUTE, config(), 32 << 20, &[]);
    server.stub.put("bucket/e/a", "");
    let other = server.tree.entries(&"e".into()).unwrap();
    let before = server.cache.stat().buffers_used_bytes;
    server.set_lie(Lie::Keys(u64::MAX));
    let error = server.list().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine, "{error}");
    assert!(server.cache.stat().buffers_used_bytes <= before);
    assert!(server.lists() < 1000, "{}", server.lists());
    assert_eq!(other.len(), 1);
    // Other listings were forgotten to make room, and are there again when they are asked for.
    server.stub.set_lies(Lies::none());
    assert_eq!(server.names("e"), ["a"]);
}

#[test]
fn answers_without_end_are_not_read_to_their_end() {
    for (status, kind, attempts) in
        [(200, ErrorKind::Other, 1), (500, ErrorKind::Unavailable, 4), (404, ErrorKind::Other, 1)]
    {
        let server = Server::new(MINUTE);
        server.set_lie(Lie::Endless(status));
        assert_eq!(server.list().unwrap_err().kind(), kind, "{status}");
        assert_eq!(server.lists(), attempts, "{status}");
        // What the sockets hold comes on top of what is read.
        assert!(
            server.stub.counts().sent_bytes < attempts * (32 << 20),
            "{}",
            server.stub.counts().sent_bytes
        );
        server.stub.set_lies(Lies::none());
        assert_eq!(server.list().unwrap().len(), 0);
    }
}

/// The name was not found, and the directory was empty.
#[test]
fn a_listing_that_is_answered_with_404_does_not_say_that_a_name_is_missing() {
    let server = Server::new(Duration::ZERO);
    server.stub.put("bucket/d/a", "");
    server.look_up("a").unwrap();
    server.set_lie(Lie::Status { code: 404, retry_after_s: None });
    let failed = [server.list().map(drop), server.look_up("a").map(drop), server.look_up("b").map(drop)];
    for error in failed.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Other, "{error}");
        assert!(error.to_string().contains("404"), "{error}");
    }
}

#[test]
fn the_body_of_an_error_is_cut_in_its_message() {
    let server = Server::new(MINUTE);
    server.set_lie(Lie::Answer(403, format!("<Error>\n{}</Error>", "m".repeat(100_000))));
    let head = server.tree.client().head(server.tree.fetcher(), "d/a").unwrap_err();
    assert_eq!(head.kind(), ErrorKind::Denied);
    let store = server.store("d/a", "\"e\"".into(), 1000);
    let read = store.read_at(0, &mut [0; 10]).unwrap_err().to_string();
    for text in [read, server.list().unwrap_err().to_string()] {
        assert!(text.contains("<Error>\\nmmmm") && text.len() < 1000, "{text}");
    }
}

/// `object_store` panicked: it added 1 to the end of a range, put a token into an address, and a
/// tag into a header.
#[test]
fn what_a_server_tells_is_checked_before_it_is_passed_on() {
    let server = Server::new(Duration::ZERO);
    let e_tag = server.stub.put("bucket/d/a", vec![7; 1000]);
    let end = u64::MAX;
    let range = format!("bytes 0-{end}/{end}");
    server.set_lie(Lie::Headers(vec![("content-range", Some(range))]));
    let error = server.store("d/a", e_tag, 1000).read_at(0, &mut [0; 10]).unwrap_err().to_string();
    assert!(error.contains("which is outside of its object (4 attempts)"), "{error}");
    let page = |inner: &str| Lie::Answer(200, format!("<ListBucketResult>{inner}</ListBucketResult>"));
    let token = "x".repeat(70_000);
    server.set_lie(page(&format!(
        "<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
    )));
    let error = server.list().unwrap_err().to_string();
    assert!(error.contains("its token has 70000 bytes") && error.len() < 1000, "{error}");
    let found = |key: &str, tag: &str| {
        format!("<Contents><Key>d/{key}</Key><ETag>{tag}</ETag><Size>5</Size></Contents>")
    };
    server.set_lie(page(&(found("crlf", "&quot;a&#13;&#10;X: 1&quot;") + &found("good", "&quot;e&quot;"))));
    assert_eq!(server.names("d"), ["good"]);
    assert_eq!(server.tree.fetcher().stat().keys_left_out, 1);
}

#[test]
fn a_page_that_is_followed_by_itself_ends_the_listing() {
    let server = Server::new(MINUTE);
    server.set_lie(Lie::SamePage);
    let error = server.list().unwrap_err();
    assert!(error.to_string().contains("the same page"), "{error}");
    assert_eq!((error.kind(), server.lists()), (ErrorKind::Other, 2));
}

#[test]
fn a_redirect_in_a_circle_costs_one_request() {
    let server = Server::new(MINUTE);
    server.stub.put("bucket/d/a", vec![7; 1000]);
    let head = || server.tree.client().head(server.tree.fetcher(), "d/a");
    let meta = head().unwrap();
    server.stub.reset_counts();
    server.set_lie(Lie::Redirect("/bucket/d/a".into()));
    assert_eq!(head().unwrap_err().kind(), ErrorKind::Other);
    let store = server.tree.client().open(server.tree.fetcher(), "d/a", meta).unwrap();
    let partition = server.cache.partition(PartitionConfig::new("objects")).unwrap();
    let object = partition.open(store, "a").unwrap();
    assert!(object.read_at(0, &mut [0; 10]).is_err());
    let counts = server.stub.counts();
    assert_eq!((counts.heads(), counts.gets()), (1, 1));
    server.set_lie(Lie::Redirect(format!("{}/loop", server.stub.endpoint())));
    assert!(server.list().is_err());
    let counts = server.stub.counts();
    assert!(counts.of(Operation::List) + counts.gets() <= 5, "{counts:?}");
}

#[test]
fn a_redirect_to_another_host_is_followed_only_if_it_is_allowed_and_without_credentials() {
    let other = Stub::start(Lies::none());
    other.put("bucket/d/a", vec![7; 1000]);
    let authorizations = Arc::new(Mutex::new(Vec::new()));
    let seen = authorizations.clone();
    other.set_lies(Lies::with(move |asked| {
        lock(&seen).push(asked.authorization.map(str::to_owned));
        None
    }));
    let host = other.endpoint().trim_start_matches("http://").to_owned();
    let heads = [(&[][..], 0), (&[&*host][..], 1)].map(|(hosts, requests)| {
        let server = Server::with(Stub::start(Lies::none()), MINUTE, config(), 64 << 20, hosts);
        server.set_lie(Lie::Redirect(format!("{}/bucket/d/a", other.endpoint())));
        let head = server.tree.client().head(server.tree.fetcher(), "d/a");
        assert_eq!(server.stub.counts().heads(), 1);
        assert_eq!(other.counts().heads(), requests);
        head
    });
    let [refused, followed] = heads;
    assert!(refused.unwrap_err().to_string().contains(&host));
    assert_eq!(followed.unwrap().size, 1000);
    assert_eq!(*lock(&authorizations), [None]);
}

#[test]
fn a_server_that_asks_for_time_is_given_it_or_given_up() {
    let server = Server::new(MINUTE);
    server.stub.put("bucket/d/a", "");
    let busy = |seconds| Lie::Status { code: 503, retry_after_s: Some(seconds) };
    server.stub.set_lies(Lies::with(move |asked| (asked.number == 1).then(|| busy(1))));
    let begun = Instant::now();
    assert_eq!(server.names("d"), ["a"]);
    assert_eq!((begun.elapsed() >= Duration::from_secs(1), server.lists()), (true, 2));
    server.tree.doubt("d/a");
    server.set_lie(busy(100_000));
    let error = server.list().unwrap_err();
    assert!(error.to_string().contains("asks to wait 100000 s"), "{error}");
    assert_eq!(server.lists(), 3);
}

/// A wrong entity tag made the version fail for ever.
#[test]
fn a_version_that_the_server_has_again_is_read_again() {
    let server = Server::new(MINUTE);
    let bytes = vec![7; 100_000];
    server.stub.put("bucket/d/a", bytes.clone());
    let meta = server.tree.client().head(server.tree.fetcher(), "d/a").unwrap();
    let store = server.tree.client().open(server.tree.fetcher(), "d/a", meta).unwrap();
    let partition = server.cache.partition(PartitionConfig::new("objects")).unwrap();
    let object = partition.open(store, "a").unwrap();
    server.stub.set_lies(Lies::always(Lie::OtherTag));
    let mut read = vec![0; bytes.len()];
    assert!(object.read_at(0, &mut read).is_err());
    server.stub.set_lies(Lies::none());
    let begun = Instant::now();
    // A failure is repeated for a second.
    while object.read_at(0, &mut read).is_err() {
        assert!(begun.elapsed() < MINUTE);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(read, bytes);
}

#[test]
fn the_kernel_finds_a_number_again_until_it_has_forgotten_it() {
    let server = Server::new(MINUTE);
    server.stub.put("bucket/d/a", "bytes");
    let (number, node) = server.look_up("a").unwrap();
    assert_eq!((&*node.key, server.look_up("a").unwrap().0), ("d/a", number));
    server.tree.forget(number, 1);
    assert!(server.tree.node(number).is_some());
    server.tree.forget(number, 1);
    assert!(server.tree.node(number).is_none());
    let again: HashMap<_, _> = lock(&server.tree.state).numbers.clone();
    assert_eq!(again.len(), 1);
}
