//! The control protocol between `octavo ctl` and a server, over a unix socket.
//!
//! Each message is one JSON object on one line, in both directions. A request is
//! `{"v":1,"do":"stat"}`. The answer is any number of lines of progress and then one
//! `{"v":1,"ok":..}` or `{"v":1,"error":..}`. More requests may follow on the same connection.
//! `docs/octavo-ctl.1.md` specifies the protocol.
//!
//! Every client that can connect may do everything: the socket's mode, 0600, is the permission.

use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::drain::Refusal;
use super::events::Event;
use super::report::RecordingReport;
use crate::order::Order;

/// The version of the protocol. It rises only with changes that an old reader would misunderstand;
/// a new field is no such change.
pub const VERSION: u32 = 1;

/// The longest request in bytes: a path and a description of 4096 bytes each fit.
pub const REQUEST_BYTES_MAX: u64 = 16 << 10;

/// The longest reply in bytes: a report of thousands of exports fits.
pub const REPLY_BYTES_MAX: u64 = 16 << 20;

/// A request. Fields that its verb does not need are left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`].
    pub v: u32,
    /// A word of [`Verb`]. Text, so that an unknown verb can be named in the error.
    #[serde(rename = "do")]
    pub verb: String,
    /// Which partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Which of its exports; or a path, for the files of mounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The bytes of a path that is not UTF-8, in hexadecimal, in place of `object`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_hex: Option<String>,
    /// Settings and their new values, applied in this order; or the keys of a new export or
    /// partition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<(String, String)>,
    /// Partitions and their new sizes, for `resize`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<(String, u64)>,
    /// Bytes to reclaim, or the new length of an export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// One of `posix_fadvise`'s words, for a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// Where the range begins; 0 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// How long it is; to the object's end if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub len: Option<u64>,
    /// Whether the clients of exports that are removed may be disconnected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disconnect: bool,
    /// Whether an export may be made shorter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shrink: bool,
    /// Whether bytes may be lost, for `export-abandon`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
    /// The events after this number, for `events`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Whether later events follow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
    /// What to record, for `record`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Order>,
}

impl Request {
    /// The request about a path, byte for byte.
    pub fn at(self, path: &Path) -> Request {
        match path.to_str() {
            Some(text) => Request { object: Some(text.to_owned()), ..self },
            None => Request { object_hex: Some(hex(path.as_os_str().as_bytes())), ..self },
        }
    }

    /// The path that the request is about, if it names one. The error is a sentence.
    pub fn path(&self) -> Result<Option<PathBuf>, String> {
        let Some(hex) = &self.object_hex else { return Ok(self.object.as_ref().map(PathBuf::from)) };
        let bytes = unhex(hex).ok_or("object_hex is not an even number of hexadecimal digits")?;
        Ok(Some(PathBuf::from(OsString::from_vec(bytes))))
    }
}

/// Bytes in hexadecimal, two digits each.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? * 16 + digit(*low)?).ok();
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

/// The operations that a client can request. On the wire, a verb is a word such as `export-add`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verb {
    /// The counters.
    Stat,
    /// Make every acknowledged write durable.
    Sync,
    /// Like `Sync`, with progress, and objects whose sync fails are retried.
    Drain,
    /// Record a partition until the client sends anything, or disconnects.
    Record,
    /// All partitions with their settings.
    Partitions,
    /// Change settings of a partition.
    Set,
    /// A partition's miss curve: its misses at other sizes.
    Mrc,
    /// Announce how a range of an export will be used.
    Advise,
    /// Evict pages; dirty pages are written back first.
    Evict,
    /// Give memory of a partition back to the system.
    Reclaim,
    /// On which nodes pages lie, and which threads access them.
    Numa,
    /// Add an export.
    ExportAdd,
    /// Drain and remove an export.
    ExportRemove,
    /// Give up the dirty bytes of an export, and remove it.
    ExportAbandon,
    /// Change the length of an export.
    ExportResize,
    /// Add a partition.
    PartitionAdd,
    /// Remove a partition that no export uses.
    PartitionRemove,
    /// The files of mounts with their resident bytes.
    Files,
    /// Evict the pages of files of mounts.
    FilesEvict,
    /// Read the configuration again, and apply what changed.
    Reload,
    /// The last events, and later ones as they happen.
    Events,
    /// How full a partition's sets are.
    Sets,
    /// How long requests and I/Os took.
    Latency,
    /// The sizes that the reaper's plan aims at.
    Plan,
    /// Set the largest sizes of several partitions.
    Resize,
    /// Hand everything over to the server that asks, and end.
    HandOver,
}

impl Verb {
    /// The verb that a word names. The error is a sentence.
    pub fn of(word: &str) -> Result<Verb, String> {
        Verb::from_str(word, false).map_err(|_| {
            let known: Vec<String> = Verb::value_variants().iter().map(|verb| verb.word()).collect();
            format!("there is no verb \"{word}\"; known: {}", known.join(", "))
        })
    }

    /// The word on the wire.
    fn word(self) -> String {
        self.to_possible_value().expect("no verb is hidden").get_name().to_owned()
    }

    /// Whether the request may wait for a store without limit.
    pub fn may_wait(self) -> bool {
        matches!(self, Verb::Sync | Verb::Drain | Verb::Advise | Verb::Evict)
            || self.concerns_what_is_served()
    }

    /// Whether the request concerns the lists of exports, partitions and mounts.
    pub fn concerns_what_is_served(self) -> bool {
        use Verb::{ExportAbandon, ExportAdd, ExportRemove, ExportResize, Files, FilesEvict};
        use Verb::{PartitionAdd, PartitionRemove, Reload};
        matches!(
            self,
            ExportAbandon
                | ExportAdd
                | ExportRemove
                | ExportResize
                | Files
                | FilesEvict
                | PartitionAdd
                | PartitionRemove
                | Reload
        )
    }
}

/// A reply: one line of the answer to a request.
#[derive(Serialize, Deserialize)]
pub struct Reply {
    /// [`VERSION`].
    pub v: u32,
    /// What the line is.
    #[serde(flatten)]
    pub body: Body,
}

/// The content of a reply.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Body {
    /// The request succeeded; the answer is complete.
    Ok(serde_json::Value),
    /// The request is in progress.
    Progress(Progress),
    /// The figures of the requested recording so far.
    Recording(RecordingReport),
    /// Events that the client follows.
    Events(Vec<Event>),
    /// The request failed, or was done only in part; the answer is complete.
    Error(Fault),
}

/// How far a drain has come.
#[derive(Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Dirty bytes left.
    pub dirty_bytes: u64,
}

/// Why a request failed.
#[derive(Serialize, Deserialize)]
pub struct Fault {
    /// A sentence.
    pub message: String,
    /// The objects whose sync failed; empty if the request failed for another reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Refusal>,
}

impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault { message, objects: Vec::new() }
    }
}

impl From<String> for Body {
    fn from(message: String) -> Body {
        Body::Error(message.into())
    }
}

impl Request {
    /// A request of this version.
    pub fn new(verb: Verb) -> Request {
        Request { v: VERSION, verb: verb.word(), ..Request::default() }
    }

    /// A request about a partition.
    pub fn about(verb: Verb, partition: &str) -> Request {
        Request { partition: Some(partition.to_owned()), ..Request::new(verb) }
    }
}

impl Reply {
    /// A reply of this version.
    pub fn new(body: Body) -> Reply {
        Reply { v: VERSION, body }
    }
}

/// Writes one message as a line.
pub fn send(stream: &mut impl Write, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads one line of at most `bytes_max`, its newline included; `None` at the end of the stream.
/// The last line of a stream may lack its newline: the JSON parser refuses a truncated message.
pub fn receive(stream: &mut impl BufRead, bytes_max: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    std::io::Read::take(&mut *stream, bytes_max).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() as u64 == bytes_max {
        let what = format!("the line is longer than {bytes_max} bytes");
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
    }
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_about_any_path_byte_for_byte() {
        for bytes in [&b"/m/plain"[..], b" /lead", b"/m/tab\t\n", b"/m/caf\xe9", "/m/zero\u{200b}".as_bytes()]
        {
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            let sent = serde_json::to_string(&Request::new(Verb::Files).at(&path)).unwrap();
            let received: Request = serde_json::from_str(&sent).unwrap();
            assert_eq!(received.path(), Ok(Some(path)), "{sent}");
        }
        assert_eq!(Request::new(Verb::Files).path(), Ok(None));
        for wrong in ["a", "0g", "+1", "é"] {
            let request = Request { object_hex: Some(wrong.into()), ..Request::new(Verb::Files) };
            assert!(request.path().is_err(), "{wrong}");
        }
    }

    #[test]
    fn messages_have_the_documented_form() {
        let request = serde_json::to_string(&Request::new(Verb::Stat)).unwrap();
        assert_eq!(request, r#"{"v":1,"do":"stat"}"#);
        let progress = Reply::new(Body::Progress(Progress { dirty_bytes: 5 }));
        assert_eq!(serde_json::to_string(&progress).unwrap(), r#"{"v":1,"progress":{"dirty_bytes":5}}"#);
        let error = Reply::new("no".to_owned().into());
        assert_eq!(serde_json::to_string(&error).unwrap(), r#"{"v":1,"error":{"message":"no"}}"#);
        let ok: Reply = serde_json::from_str(r#"{"v":1,"ok":{}}"#).unwrap();
        assert!(matches!(ok.body, Body::Ok(_)));
    }

    #[test]
    fn a_line_that_is_too_long_is_an_error_and_takes_no_memory() {
        let mut endless = std::io::BufReader::new(std::io::repeat(b'x'));
        assert!(receive(&mut endless, 4096).is_err());
        assert!(receive(&mut &b""[..], 10).unwrap().is_none());
        assert_eq!(receive(&mut &b"ab\ncd"[..], 10).unwrap().unwrap(), b"ab");
        assert_eq!(receive(&mut &b"cd"[..], 10).unwrap().unwrap(), b"cd");
        assert_eq!(receive(&mut &b"abc\n"[..], 4).unwrap().unwrap(), b"abc");
        assert!(receive(&mut &b"abcd"[..], 4).is_err());
    }
}
