//! The page's server under test, and its clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use octavo_web::{Guard, Recorder, Settings, Token};
use serde_json::Value;

/// How long a slow machine may take for a step that is usually immediate.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The token of all tests.
pub const TOKEN: &str = "0123456789abcdef-token";

/// Serves the page of the server at a socket; returns the address. The server ends with the test
/// program.
pub fn serve(socket: PathBuf, token: Option<&str>, record: Option<PathBuf>) -> SocketAddr {
    let token = token.map(str::to_owned);
    let (send, address) = mpsc::channel();
    std::thread::spawn(move || {
        let guard = Guard {
            is_own_host: Box::new(|host, local| host == format!("{local}:80").as_bytes() || host == b"own"),
            token: token.map(|token| Token::of_text(&token).unwrap()),
        };
        let settings = Settings {
            socket,
            listen: "127.0.0.1:0".parse().unwrap(),
            interval: octavo_web::INTERVAL_MIN,
            guard,
            recorder: record.map(|path| Recorder::open(&path, 0).unwrap()),
        };
        octavo_web::serve(settings, |address| send.send(address).unwrap()).unwrap();
    });
    address.recv_timeout(PATIENCE).unwrap()
}

/// Connects, and sends a request with these headers.
pub fn send(address: SocketAddr, line: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut request = format!("{line} HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{request}\r\n{body}").as_bytes()).unwrap();
    stream
}

/// Asks with these headers beside `Host`; the status, the head and the body.
pub fn ask_with(
    address: SocketAddr,
    line: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String, String) {
    let headers = [&[("host", "own"), ("connection", "close")], headers].concat();
    read_answer(send(address, line, &headers, body))
}

/// Reads an answer to its end; the status, the head and the body.
pub fn read_answer(mut stream: TcpStream) -> (u16, String, String) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer}"));
    (head[9..12].parse().unwrap(), head.to_lowercase(), body.to_owned())
}

/// Asks for a page; the status and the body.
pub fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let (status, _, body) = ask_with(address, &format!("GET {path}"), &[], "");
    (status, body)
}

/// Follows the feed.
pub struct Feed(BufReader<TcpStream>);

impl Feed {
    pub fn open(address: SocketAddr) -> Feed {
        Feed(BufReader::new(send(address, "GET /api/feed", &[("host", "own")], "")))
    }

    /// The data of the next news of a topic that `wanted` accepts. News before it are skipped.
    pub fn next(&mut self, topic: &str, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        let begun = Instant::now();
        let mut is_topic = false;
        loop {
            assert!(begun.elapsed() < PATIENCE, "no such news of {topic}");
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the feed has ended");
            if let Some(name) = line.strip_prefix("event: ") {
                is_topic = name.trim_end() == topic;
            } else if let Some(data) = line.strip_prefix("data: ").filter(|_| is_topic) {
                let data: Value = serde_json::from_str(data).unwrap();
                if wanted(&data) {
                    return data;
                }
            }
        }
    }
}
