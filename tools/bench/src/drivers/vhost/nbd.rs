//! [`NbdReader`]: a small NBD client. It sends all requests of a turn in one system call, and takes
//! as many replies in one call as its buffer holds, so that it costs little beside the server.
//!
//! The handshake is in `crate::nbd`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use super::guest::Checked;
use crate::content::PAGE_BYTES;
use crate::error::Error;
use crate::nbd::{REPLY_BYTES, REPLY_MAGIC, REQUEST_MAGIC, connect};
use crate::stage::offset;
use crate::statistics::Histogram;
use crate::stream::Pages;
use crate::turns::Worker;

/// Reads pages of an export.
pub struct NbdReader {
    socket: UnixStream,
    free: Vec<usize>,
    reads: Vec<(u64, Instant)>,
    outgoing: Vec<u8>,
    /// Bytes of replies. Those before `incoming_end` have been received.
    incoming: Vec<u8>,
    incoming_end: usize,
    pages: Pages,
    checked: Checked,
}

impl NbdReader {
    /// Connects to an export, for `depth` reads in flight.
    pub fn connect(
        socket: &Path,
        export: &str,
        depth: usize,
        pages: Pages,
        checked: Checked,
    ) -> Result<NbdReader, Error> {
        let socket = connect(socket, export)?;
        Ok(NbdReader {
            socket,
            free: (0..depth).collect(),
            reads: vec![(0, Instant::now()); depth],
            outgoing: Vec::new(),
            incoming: vec![0; depth * (REPLY_BYTES + PAGE_BYTES)],
            incoming_end: 0,
            pages,
            checked,
        })
    }

    /// Receives at least `min` replies, and checks them.
    fn wait(&mut self, min: usize, mut times: Option<&mut Histogram>) -> Result<u64, Error> {
        const WHOLE: usize = REPLY_BYTES + PAGE_BYTES;
        let mut count = 0;
        while count < min {
            let received = self.socket.read(&mut self.incoming[self.incoming_end..]);
            let received = received.map_err(Error::at("NBD"))?;
            if received == 0 {
                return Err(Error::new("NBD: the server has closed the connection"));
            }
            self.incoming_end += received;
            let (replies, _) = self.incoming[..self.incoming_end].as_chunks::<WHOLE>();
            for reply in replies {
                let (head, bytes) = reply.split_at(REPLY_BYTES);
                let word =
                    |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
                let slot = word(12) as usize;
                if word(0) != REPLY_MAGIC || word(4) != 0 || slot >= self.reads.len() {
                    return Err(Error::new("NBD: a reply is not the answer to a read"));
                }
                let (page, begun) = self.reads[slot];
                if let Some(times) = &mut times {
                    times.add(begun.elapsed().as_nanos() as u64);
                }
                self.checked.check(page, bytes)?;
                self.free.push(slot);
            }
            count += replies.len();
            let taken = replies.len() * WHOLE;
            self.incoming.copy_within(taken..self.incoming_end, 0);
            self.incoming_end -= taken;
        }
        Ok(count as u64)
    }
}

impl Worker for NbdReader {
    fn turn(&mut self, times: Option<&mut Histogram>) -> Result<u64, Error> {
        self.outgoing.clear();
        while let Some(slot) = self.free.pop() {
            let page = self.pages.next().ok_or_else(|| Error::new("the pages have an end"))?;
            self.reads[slot] = (page, if times.is_some() { Instant::now() } else { self.reads[slot].1 });
            self.outgoing.extend(REQUEST_MAGIC.to_be_bytes());
            // No flags, command 0: a read.
            self.outgoing.extend([0; 4]);
            self.outgoing.extend((slot as u64).to_be_bytes());
            self.outgoing.extend(offset(page).to_be_bytes());
            self.outgoing.extend((PAGE_BYTES as u32).to_be_bytes());
        }
        self.socket.write_all(&self.outgoing).map_err(Error::at("NBD"))?;
        self.wait(1, times)
    }

    fn settle(&mut self) -> Result<(), Error> {
        self.wait(self.reads.len() - self.free.len(), None).map(drop)
    }
}
