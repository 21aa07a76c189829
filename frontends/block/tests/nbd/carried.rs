//! A store that is no file to the engine, with no call for zeroing, and that can fail.

use octavo::disk::{Backend, IoRequest, Op, Store};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub struct Carried {
    file: File,
    fails_from: u64,
}

impl Carried {
    /// Returns a store over a file. Reads that end after `fails_from` fail, and writes there find
    /// the store full.
    pub fn store(path: &Path, fails_from: u64) -> Store {
        let file = File::options().read(true).write(true).open(path).unwrap();
        Store::from_backend("carried", Carried { file, fails_from }).unwrap()
    }

    fn execute(&self, request: &mut IoRequest) -> io::Result<usize> {
        let (offset, mut bytes) = (request.offset(), vec![0; request.len_bytes()]);
        match request.op() {
            Op::Read if offset + bytes.len() as u64 > self.fails_from => {
                return Err(io::Error::other("the volume fails"));
            }
            Op::Read => {
                self.file.read_exact_at(&mut bytes, offset)?;
                request.copy_in(0, &bytes);
            }
            Op::Write if offset + bytes.len() as u64 > self.fails_from => {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            Op::Write => {
                request.copy_out(0, &mut bytes);
                self.file.write_all_at(&bytes, offset)?;
            }
            Op::Sync => {}
            Op::Zero | Op::Discard => unreachable!("not supported"),
        }
        Ok(bytes.len())
    }
}

impl Backend for Carried {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn submit(&self, mut request: IoRequest) {
        let outcome = self.execute(&mut request);
        request.complete(outcome);
    }
}
