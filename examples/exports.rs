//! A server whose exports come and go while its clients are at work. One client writes and verifies
//! a disk that stays; meanwhile other disks are added, used and removed.
//!
//! Run it with `cargo run -p octavo-examples --bin exports`.

use std::error::Error;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use octavo::disk::{OpenOptions, Store};
use octavo::{Cache, CacheConfig, CacheMode, Partition, PartitionConfig};
use octavo_block::{Export, Limits, Server};
use octavo_random::Random;

const DISK_BYTES: u64 = 1 << 20;
const ROUNDS: u32 = 40;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("nbd.sock");
    let cache = Cache::new(CacheConfig::default())?;
    let partition = cache
        .partition(PartitionConfig { cache_mode: CacheMode::Writeback, ..PartitionConfig::new("disks") })?;
    let server = Server::new(cache.clone(), Limits::default())?;
    server.listen(&[format!("unix:{}", socket.display()).parse()?])?;
    server.add(export(&partition, directory.path(), "stays")?)?;
    let descriptors = descriptors()?;

    let is_over = AtomicBool::new(false);
    let steps = thread::scope(|scope| {
        let load = scope.spawn(|| mistreat(&socket, "stays", 1, |_| !is_over.load(Ordering::Relaxed)));
        let changed = come_and_go(&server, &partition, directory.path(), &socket);
        is_over.store(true, Ordering::Relaxed);
        let steps = load.join().expect("the client does not panic")?;
        changed.map(|()| steps)
    })?;
    println!("{ROUNDS} disks came and went beside {steps} verified requests");
    // The cache makes an I/O ring or two for the calls, and keeps them.
    assert!(self::descriptors()? < descriptors + 10, "each disk left a descriptor behind");
    server.shutdown(Duration::from_secs(5));
    Ok(())
}

/// Again and again adds a disk, lets a client use it, removes it, and looks at its file.
fn come_and_go(
    server: &Server,
    partition: &Partition,
    directory: &Path,
    socket: &Path,
) -> Result<(), Box<dyn Error>> {
    for round in 0..ROUNDS {
        let name = format!("disk {round}");
        server.add(export(partition, directory, &name)?)?;
        let mut client = Client::connect(socket, &name)?;
        let bytes = Random::new(u64::from(round)).bytes(10_000);
        client.write(5_000, &bytes)?;

        // An export with clients stays, unless they may be disconnected.
        assert!(server.retire(&name, None).is_err(), "{name} has a client");
        let retired = server.retire(&name, Some(Duration::from_secs(5)))?;
        assert!(Client::connect(socket, &name).is_err(), "{name} is not found any more");
        // What clients wrote reaches the file before the export is gone.
        retired.object().close()?;
        retired.remove();
        let file = std::fs::read(directory.join(&name))?;
        assert!(file[5_000..15_000] == bytes, "{name} has lost bytes");
        std::fs::remove_file(directory.join(&name))?;
    }
    Ok(())
}

fn export(partition: &Partition, directory: &Path, name: &str) -> Result<Export, Box<dyn Error>> {
    let options = OpenOptions { create_len_bytes: Some(DISK_BYTES), ..OpenOptions::default() };
    let object = partition.open(Store::open(&directory.join(name), &options)?, name)?;
    Ok(Export {
        name: name.to_owned(),
        description: String::new(),
        object,
        read_only: false,
        is_listed: true,
    })
}

/// Writes and reads at random while `goes_on`, and compares every byte. Returns the requests made.
fn mistreat(socket: &Path, name: &str, seed: u64, goes_on: impl Fn(u64) -> bool) -> io::Result<u64> {
    let (mut client, mut random) = (Client::connect(socket, name)?, Random::new(seed));
    let mut model = vec![0; DISK_BYTES as usize];
    let mut steps = 0;
    while goes_on(steps) {
        steps += 1;
        let start = random.below(DISK_BYTES) as usize;
        let end = (start + 1 + random.below(20_000) as usize).min(model.len());
        if random.one_in(2) {
            model[start..end].copy_from_slice(&random.bytes(end - start));
            client.write(start as u64, &model[start..end])?;
        } else {
            assert!(client.read(start as u64, end - start)? == model[start..end], "{name}, at {start}");
        }
    }
    Ok(steps)
}

/// The descriptors that this process has.
fn descriptors() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

/// As much of an NBD client as this takes. A client of a real program would use a library.
struct Client(UnixStream);

impl Client {
    /// Connects, and asks for an export by NBD_OPT_GO. An error if there is none of this name.
    fn connect(socket: &Path, name: &str) -> io::Result<Client> {
        let mut client = Client(UnixStream::connect(socket)?);
        client.take(18)?;
        // The flags: fixed newstyle, no zeros.
        client.0.write_all(&3_u32.to_be_bytes())?;
        let name_len = (name.len() as u32).to_be_bytes();
        let option = [&name_len[..], name.as_bytes(), &[0; 2]].concat();
        let head = [&b"IHAVEOPT"[..], &7_u32.to_be_bytes(), &(option.len() as u32).to_be_bytes()].concat();
        client.0.write_all(&[head, option].concat())?;
        loop {
            let reply = client.take(20)?;
            let [kind, len] =
                [12, 16].map(|at| u32::from_be_bytes([0, 1, 2, 3].map(|byte| reply[at + byte])));
            client.take(len as usize)?;
            match kind {
                // NBD_REP_ACK, NBD_REP_INFO.
                1 => return Ok(client),
                3 => {}
                _ => return Err(io::Error::new(io::ErrorKind::NotFound, format!("no export {name:?}"))),
            }
        }
    }

    fn take(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn ask(&mut self, command: u16, offset: u64, len: u32, bytes: &[u8]) -> io::Result<()> {
        let head = [&0x2560_9513_u32.to_be_bytes()[..], &[0; 2], &command.to_be_bytes(), &[7; 8]].concat();
        self.0.write_all(&[&head, &offset.to_be_bytes()[..], &len.to_be_bytes(), bytes].concat())?;
        let reply = self.take(16)?;
        match reply[4..8] {
            [0, 0, 0, 0] => Ok(()),
            _ => Err(io::Error::other(format!("the server answered {:?}", &reply[4..8]))),
        }
    }

    fn read(&mut self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.ask(0, offset, len as u32, &[])?;
        self.take(len)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.ask(1, offset, bytes.len() as u32, bytes)
    }
}
