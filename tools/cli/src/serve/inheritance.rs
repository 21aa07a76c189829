//! [`Inheritance`]: what a server leaves to the next one, as a list of descriptors that can be
//! passed to another process. The first is a file in memory that describes the others: the pages,
//! the listening sockets, the connections of NBD clients. It also has what the configuration lacks:
//! the partitions and exports that `octavo ctl` has added.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use octavo_block::{ClientState, Estate, HeldClient, HeldListener};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::control::protocol::Request;

/// Raised by every change that an older or newer server would misunderstand.
/// Version 1 lacks what `octavo ctl` has added, and is written where there is nothing: an earlier
/// server can then take over, too.
const VERSION: u32 = 2;

/// The largest description that is read: thousands of clients.
const BYTES_MAX: u64 = 256 << 20;

/// What a server leaves to the next one.
#[derive(Default)]
pub struct Inheritance {
    /// The pages of the cache; see [`octavo::Cache::evacuate`].
    pub pages: Option<File>,
    /// The sockets and the clients.
    pub estate: Estate,
    /// The configuration that was in force, for a server that resumes: name and text.
    pub config: Option<(String, String)>,
    /// The requests of `octavo ctl` that added partitions and exports which the configuration
    /// lacks.
    pub asked: Vec<Request>,
}

/// The description.
#[derive(Serialize, Deserialize)]
struct Manifest {
    version: u32,
    has_pages: bool,
    config: Option<(String, String)>,
    #[serde(default)]
    asked: Vec<Request>,
    listeners: Vec<String>,
    clients: Vec<Client>,
}

#[derive(Serialize, Deserialize)]
struct Client {
    who: String,
    export: String,
    read_only: bool,
    len_bytes: u64,
    headers: u8,
    contexts: u8,
    unread: Vec<u8>,
}

/// A file in memory.
pub fn memory_file(name: &str) -> io::Result<File> {
    Ok(memfd_create(name, MemfdFlags::CLOEXEC)?.into())
}

impl Inheritance {
    /// The descriptors to pass on.
    pub fn into_descriptors(self) -> io::Result<Vec<OwnedFd>> {
        let Inheritance { pages, estate, config, asked } = self;
        let mut clients = Vec::new();
        let mut sockets = Vec::new();
        let listeners = estate.listeners.iter().map(|held| held.address.to_string()).collect();
        sockets.extend(estate.listeners.into_iter().map(|held| held.socket));
        for HeldClient { socket, state } in estate.clients {
            let ClientState { who, export, read_only, len_bytes, headers, contexts, unread } = state;
            clients.push(Client { who, export, read_only, len_bytes, headers, contexts, unread });
            sockets.push(socket);
        }
        let has_pages = pages.is_some();
        let version = if asked.is_empty() { 1 } else { VERSION };
        let manifest = Manifest { version, has_pages, config, asked, listeners, clients };
        let file = memory_file("octavo-manifest")?;
        file.write_all_at(&serde_json::to_vec(&manifest)?, 0)?;
        let first = [Some(file), pages].into_iter().flatten().map(OwnedFd::from);
        Ok(first.chain(sockets).collect())
    }

    /// What these descriptors are. The error is a sentence.
    pub fn of_descriptors(descriptors: Vec<OwnedFd>) -> Result<Inheritance, String> {
        let mut descriptors = descriptors.into_iter();
        let Some(first) = descriptors.next() else { return Ok(Inheritance::default()) };
        let manifest = read(&File::from(first))
            .map_err(|error| format!("what the former server left cannot be read: {error}"))?;
        if !(1..=VERSION).contains(&manifest.version) {
            return Err(format!(
                "the former server left what version {} of the hand-over describes; this one knows versions up to {VERSION}",
                manifest.version
            ));
        }
        let missing = || "descriptors are missing in what the former server left".to_owned();
        let mut next = || descriptors.next().ok_or_else(missing);
        let pages = if manifest.has_pages { Some(File::from(next()?)) } else { None };
        let mut estate = Estate::default();
        for address in manifest.listeners {
            let address = address.parse().map_err(|error: octavo_block::Error| error.to_string())?;
            estate.listeners.push(HeldListener { address, socket: next()? });
        }
        for client in manifest.clients {
            let Client { who, export, read_only, len_bytes, headers, contexts, unread } = client;
            let state = ClientState { who, export, read_only, len_bytes, headers, contexts, unread };
            estate.clients.push(HeldClient { socket: next()?, state });
        }
        Ok(Inheritance { pages, estate, config: manifest.config, asked: manifest.asked })
    }
}

fn read(file: &File) -> io::Result<Manifest> {
    let len = file.metadata()?.len();
    if len > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("its description has {len} bytes")));
    }
    let mut text = vec![0; len as usize];
    file.read_exact_at(&mut text, 0)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::protocol::Verb;
    use std::os::unix::net::UnixStream;

    #[test]
    fn an_inheritance_survives_its_passage_as_descriptors() {
        let (client, _other) = UnixStream::pair().unwrap();
        let (listener, _) = UnixStream::pair().unwrap();
        let state = ClientState {
            who: "client 1 at unix:/s".into(),
            export: "disk".into(),
            read_only: false,
            len_bytes: 1 << 20,
            headers: 2,
            contexts: 1,
            unread: vec![0, 255, 7],
        };
        let pages = memory_file("pages").unwrap();
        pages.write_all_at(b"pages", 0).unwrap();
        let estate = Estate {
            listeners: vec![HeldListener {
                address: "unix:/run/a:b".parse().unwrap(),
                socket: listener.into(),
            }],
            clients: vec![HeldClient { socket: client.into(), state: state.clone() }],
        };
        let config = Some(("octavo.toml".to_owned(), "[cache]".to_owned()));
        let values = vec![("path".to_owned(), "/b".to_owned())];
        let more = Request { object: Some("more".into()), values, ..Request::new(Verb::ExportAdd) };
        let passed =
            Inheritance { pages: Some(pages), estate, config: config.clone(), asked: vec![more.clone()] };
        let taken = Inheritance::of_descriptors(passed.into_descriptors().unwrap()).unwrap();
        let mut bytes = [0; 5];
        taken.pages.unwrap().read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((&bytes, taken.config), (b"pages", config));
        assert_eq!(taken.estate.listeners[0].address.to_string(), "unix:/run/a:b");
        assert_eq!(taken.estate.clients[0].state, state);
        assert_eq!((&taken.asked[0].object, &taken.asked[0].values), (&more.object, &more.values));
    }

    #[test]
    fn an_inheritance_in_which_something_is_missing_is_refused() {
        assert!(Inheritance::of_descriptors(Vec::new()).unwrap().pages.is_none());
        let noise = memory_file("noise").unwrap();
        noise.write_all_at(b"{}", 0).unwrap();
        assert!(Inheritance::of_descriptors(vec![noise.into()]).is_err());
        let passed = Inheritance { pages: Some(memory_file("p").unwrap()), ..Inheritance::default() };
        let mut descriptors = passed.into_descriptors().unwrap();
        descriptors.pop();
        let error = Inheritance::of_descriptors(descriptors).err().unwrap();
        assert!(error.contains("missing"), "{error}");
    }
}
