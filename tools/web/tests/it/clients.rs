//! Many clients, and slow ones.

use std::net::TcpStream;

use octavo_web::CLIENTS_MAX;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::control::{Control, server};
use crate::site::{Feed, get, send, serve};

/// A page that is in the background, or on a slow network, must not make the others or the memory
/// pay: it finds the latest interval when it reads again, and never those between.
#[test]
fn a_slow_client_loses_intervals() {
    let folder = tempfile::tempdir().unwrap();
    // An interval takes some hundred KiB, so a few fill the buffers of a connection.
    let control = Control::start(folder.path(), server(1, 1500));
    let address = serve(control.path(), None, None);
    let (mut slow, mut quick) = (Feed::open(address), Feed::open(address));
    let first = quick.next("interval", |_| true)["number"].as_u64().unwrap();
    let last = first + 60;
    quick.next("interval", |interval| interval["number"].as_u64() >= Some(last));
    let mut read = 0;
    slow.next("interval", |interval| {
        read += 1;
        interval["number"].as_u64() >= Some(last)
    });
    assert!(read < 60, "{read} intervals were kept for a client that read nothing");
}

#[test]
fn pages_beyond_a_thousand_are_told_so_and_all_share_one_connection_to_the_server() {
    // Both ends of each connection are in this process.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let control = Control::start(folder.path(), server(1, 1));
    let address = serve(control.path(), None, None);
    let mut feeds: Vec<Feed> = (0..CLIENTS_MAX).map(|_| Feed::open(address)).collect();
    for feed in &mut feeds {
        feed.next("state", |_| true);
    }
    let (status, why) = get(address, "/");
    assert!(status == 503 && why.contains("1000 clients"), "{status} {why}");
    assert_eq!(control.connections(), 1);
    // The connection is closed by the server's side of the test; its place is free some time later.
    drop(feeds.pop());
    let begun = std::time::Instant::now();
    while get(address, "/").0 != 200 {
        assert!(begun.elapsed() < crate::site::PATIENCE, "the place of a page that was closed stays taken");
    }
    feeds[0].next("interval", |_| true);
}

#[test]
fn a_client_that_never_asks_holds_up_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let control = Control::start(folder.path(), server(1, 1));
    let address = serve(control.path(), None, None);
    let _silent = TcpStream::connect(address).unwrap();
    let _unread = send(address, "GET /api/history", &[("host", "own")], "");
    assert_eq!(get(address, "/").0, 200);
}
