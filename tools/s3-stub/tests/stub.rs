//! What the server sends, byte by byte.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use octavo_s3_stub::{Lie, Lies, Operation, Stub, StubConfig};

/// An answer as it came: what was received, and how the connection ended.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
    reset: bool,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// Sends one request on a connection of its own, and reads until that ends.
fn send(stub: &Stub, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut stream = TcpStream::connect(stub.endpoint().trim_start_matches("http://")).unwrap();
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: stub\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    stream.write_all(request.as_bytes()).unwrap();
    let (mut received, mut buffer, mut reset) = (Vec::new(), [0; 4096], false);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => received.extend_from_slice(&buffer[..count]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                reset = true;
                break;
            }
        }
    }
    let end = received.windows(4).position(|four| four == b"\r\n\r\n").map_or(received.len(), |at| at + 4);
    let head = String::from_utf8(received[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).map_or(0, |status| status.parse().unwrap());
    Answer { status, head, body: received[end..].to_vec(), reset }
}

fn get(stub: &Stub, path: &str, headers: &[(&str, &str)]) -> Answer {
    send(stub, "GET", path, headers, "")
}

/// The bytes of the object of most tests.
fn object() -> Vec<u8> {
    (0..200_000_u32).map(|at| (at % 251) as u8).collect()
}

/// Asks for bytes 1000 to 2999 of an object that has one old version, under a lie.
fn under(lie: Lie) -> (Answer, Stub) {
    let stub = Stub::start(Lies::none());
    stub.put("b/k", vec![0xAA; 150_000]);
    let tag = stub.put("b/k", object());
    stub.set_lies(Lies::always(lie));
    let answer = get(&stub, "/b/k", &[("range", "bytes=1000-2999"), ("if-match", &tag)]);
    assert_eq!(stub.counts().lies.values().sum::<u64>(), 1);
    assert_eq!(stub.counts().path("b/k").sent_bytes, answer_bytes(&answer));
    (answer, stub)
}

fn answer_bytes(answer: &Answer) -> u64 {
    answer.body.len() as u64
}

#[test]
fn an_object_is_read_whole_in_part_and_under_conditions() {
    let stub = Stub::start(Lies::none());
    let tag = stub.put("bucket/a b/c", object());
    let whole = get(&stub, "/bucket/a%20b/c", &[]);
    assert_eq!((whole.status, whole.header("content-length")), (200, Some("200000")));
    assert_eq!((whole.header("etag"), &whole.body), (Some(&*tag), &object()));
    let part = get(&stub, "/bucket/a%20b/c", &[("range", "bytes=-5")]);
    assert_eq!((part.status, part.header("content-range")), (206, Some("bytes 199995-199999/200000")));
    assert_eq!(part.body, object()[199_995..]);
    let head = send(&stub, "HEAD", "/bucket/a%20b/c", &[], "");
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, Some("200000"), 0));
    let status = |name: &str, value: &str| get(&stub, "/bucket/a%20b/c", &[(name, value)]).status;
    assert_eq!((status("if-match", &tag), status("if-match", "\"no\"")), (200, 412));
    assert_eq!((status("if-none-match", &tag), status("if-none-match", "\"no\"")), (304, 200));
    let (past, future) = ("Mon, 01 Jan 2001 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT");
    assert_eq!((status("if-modified-since", past), status("if-modified-since", future)), (200, 304));
    assert_eq!((status("if-unmodified-since", past), status("if-unmodified-since", future)), (412, 200));
    assert_eq!(status("range", "bytes=200000-"), 416);
    assert_eq!(get(&stub, "/bucket/other", &[]).status, 404);
    let counts = stub.counts();
    assert_eq!((counts.heads(), counts.path("bucket/a b/c").heads, counts.gets()), (1, 1, 12));
    assert_eq!(counts.of(Operation::Put), 0);
}

#[test]
fn objects_are_written_copied_listed_and_removed() {
    let stub = Stub::start(Lies::none());
    for key in ["a/1", "a/2", "b&c", "d"] {
        let path = format!("/bucket/{}", key.replace('&', "%26"));
        assert_eq!(send(&stub, "PUT", &path, &[("x-amz-meta-n", key)], key).status, 200);
    }
    assert_eq!(send(&stub, "PUT", "/bucket/d", &[("if-none-match", "*")], "").status, 412);
    assert_eq!(send(&stub, "PUT", "/bucket/e", &[("x-amz-copy-source", "/bucket/b%26c")], "").status, 200);
    let copy = get(&stub, "/bucket/e", &[]);
    assert_eq!((copy.text(), copy.header("x-amz-meta-n")), ("b&c", Some("b&c")));
    let keys = |query: &str| {
        let listed = get(&stub, &format!("/bucket?list-type=2&{query}"), &[]);
        let mut found: Vec<String> = Vec::new();
        for part in listed.text().split("<Key>").skip(1) {
            found.push(part.split("</Key>").next().unwrap().to_owned());
        }
        for part in listed.text().split("<CommonPrefixes><Prefix>").skip(1) {
            found.push(part.split("</Prefix>").next().unwrap().to_owned());
        }
        found.join(" ")
    };
    assert_eq!(keys(""), "a/1 a/2 b&amp;c d e");
    assert_eq!(keys("delimiter=%2F"), "b&amp;c d e a/");
    assert_eq!(keys("prefix=a%2F"), "a/1 a/2");
    assert_eq!(keys("start-after=a%2F2"), "b&amp;c d e");
    assert_eq!(keys("delimiter=/&max-keys=1"), "a/");
    assert_eq!(keys("delimiter=/&max-keys=1&continuation-token=a%2F"), "b&amp;c");
    let both = "<Delete><Object><Key>b&amp;c</Key></Object><Object><Key>a/1</Key></Object></Delete>";
    assert_eq!(send(&stub, "POST", "/bucket?delete", &[], both).status, 200);
    assert_eq!(send(&stub, "DELETE", "/bucket/e", &[], "").status, 204);
    assert_eq!(keys(""), "a/2 d");
}

#[test]
fn an_upload_in_parts_becomes_an_object() {
    let stub = Stub::start(Lies::none());
    let begun = send(&stub, "POST", "/b/k?uploads", &[], "");
    let id = begun.text().split("<UploadId>").nth(1).unwrap().split('<').next().unwrap().to_owned();
    for (number, text) in [(2, "world"), (1, "hello ")] {
        let path = format!("/b/k?partNumber={number}&uploadId={id}");
        assert_eq!(send(&stub, "PUT", &path, &[], text).status, 200);
    }
    assert_eq!(get(&stub, "/b/k", &[]).status, 404);
    let list = "<Part><PartNumber>1</PartNumber></Part><Part><PartNumber>2</PartNumber></Part>";
    assert_eq!(send(&stub, "POST", &format!("/b/k?uploadId={id}"), &[], list).status, 200);
    assert_eq!(get(&stub, "/b/k", &[]).text(), "hello world");
}

#[test]
fn old_versions_are_read_by_their_names() {
    let stub = Stub::start_with(StubConfig { version_ids: true, ..StubConfig::default() }).unwrap();
    stub.put("b/k", "one");
    let first = get(&stub, "/b/k", &[]).header("x-amz-version-id").unwrap().to_owned();
    stub.put("b/k", "two");
    stub.delete("b/k");
    assert_eq!(get(&stub, "/b/k", &[]).status, 404);
    assert_eq!(get(&stub, &format!("/b/k?versionId={first}"), &[]).text(), "one");
}

#[test]
fn files_of_a_directory_are_objects_that_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(directory.path().join("b/sub")).unwrap();
    std::fs::write(directory.path().join("b/sub/k"), object()).unwrap();
    let config = StubConfig { directory: Some(directory.path().into()), ..StubConfig::default() };
    let stub = Stub::start_with(config).unwrap();
    let part = get(&stub, "/b/sub/k", &[("range", "bytes=100000-180000")]);
    assert_eq!((part.status, part.body), (206, object()[100_000..=180_000].to_vec()));
    assert!(get(&stub, "/b?list-type=2", &[]).text().contains("<Key>sub/k</Key>"));
    assert_eq!(get(&stub, "/b/../b/sub/k", &[]).status, 404);
    assert_eq!(get(&stub, "/b/sub", &[]).status, 404);
    assert_eq!(send(&stub, "PUT", "/b/sub/k", &[], "x").status, 405);
}

#[test]
fn bodies_end_early_are_short_or_long() {
    let (early, _) = under(Lie::ClosedEarly);
    assert_eq!((early.status, early.header("content-length"), early.reset), (206, Some("2000"), false));
    assert_eq!(early.body, object()[1000..2000]);
    let (short, _) = under(Lie::Short);
    assert_eq!((short.header("content-length"), short.body.len()), (Some("1000"), 1000));
    assert_eq!(short.header("content-range"), Some("bytes 1000-2999/200000"));
    let (long, _) = under(Lie::Long);
    assert_eq!((long.header("content-length"), long.body.len()), (Some("3000"), 3000));
    assert_eq!(long.header("content-range"), Some("bytes 1000-2999/200000"));
}

#[test]
fn ranges_and_versions_are_others() {
    let (other, _) = under(Lie::OtherRange);
    assert_eq!(other.header("content-range"), Some("bytes 3000-4999/200000"));
    assert_eq!(other.body, object()[3000..5000]);
    let (whole, _) = under(Lie::WholeObject);
    assert_eq!((whole.status, whole.header("content-range")), (200, None));
    assert_eq!(whole.body, object());
    let (old, _) = under(Lie::OldVersion);
    assert_eq!(old.header("content-range"), Some("bytes 1000-2999/150000"));
    assert_eq!(old.body, [0xAA; 2000]);
    let (tag, stub) = under(Lie::OtherTag);
    assert_eq!(tag.body, object()[1000..3000]);
    let right = send(&stub, "HEAD", "/b/k", &[], "");
    assert_ne!(tag.header("etag"), right.header("etag"));
    let ignored = [("if-match", "\"gone\"")];
    assert_eq!(get(&stub, "/b/k", &ignored).status, 412);
    stub.set_lies(Lies::always(Lie::IfMatchIgnored));
    let ignored = get(&stub, "/b/k", &ignored);
    assert_eq!((ignored.status, ignored.header("etag")), (200, right.header("etag")));
}

#[test]
fn errors_resets_and_stalls_come_when_planned() {
    let (busy, _) = under(Lie::Status { code: 503, retry_after_s: Some(7) });
    assert_eq!((busy.status, busy.header("retry-after")), (503, Some("7")));
    let stall = Duration::from_millis(300);
    for lie in [Lie::StallBefore(stall), Lie::StallInside(stall)] {
        let start = Instant::now();
        let (late, _) = under(lie);
        assert!(start.elapsed() >= stall);
        assert_eq!(late.body, object()[1000..3000]);
    }
    let (inside, _) = under(Lie::ResetInside);
    assert!(inside.reset && inside.body == object()[1000..2000]);
    let (before, _) = under(Lie::ResetBefore);
    assert!(before.reset && before.head.is_empty());
}

#[test]
fn a_plan_sees_what_is_asked_and_may_change_the_objects() {
    let stub = Stub::start(Lies::none());
    stub.put("b/k", "one");
    stub.set_lies(Lies::with(|asked| {
        if asked.number == 2 && asked.range == Some(1..3) {
            asked.contents.put(asked.path, "two");
        }
        None
    }));
    assert_eq!(get(&stub, "/b/k", &[]).text(), "one");
    assert_eq!(get(&stub, "/b/k", &[("range", "bytes=1-2")]).text(), "wo");
    stub.reset_counts();
    assert_eq!(stub.counts().gets(), 0);
    get(&stub, "/b/k", &[]);
    let printed = get(&stub, "/-/counts", &[]);
    assert!(printed.text().contains("gets 1\n") && printed.text().contains("path 0 1 3 b/k\n"));
}

#[test]
fn every_first_byte_can_be_late() {
    let first_byte = Duration::from_millis(100);
    let stub = Stub::start_with(StubConfig { first_byte, ..StubConfig::default() }).unwrap();
    stub.put("b/k", "one");
    let start = Instant::now();
    get(&stub, "/b/k", &[]);
    assert!(start.elapsed() >= first_byte);
}
