//! Taking back what a reply would have given the kernel, when the program was killed and its
//! request answered before it was performed (`calls.rs`, C3).

use zerocopy::FromBytes;

use crate::fs::Fs;
use crate::handles::Handle;
use crate::wire::{Dirent, EntryOut, Opcode, OpenOut, Reader};

impl Fs {
    /// Takes back what the reply `out` to an operation contains: lookups and handles.
    pub fn undo(&self, operation: Opcode, out: &[u8]) {
        let mut reply = Reader::new(out);
        match operation {
            Opcode::Lookup | Opcode::Mknod | Opcode::Mkdir | Opcode::Symlink | Opcode::Link => {
                self.forget_entry(&mut reply);
            }
            Opcode::Create | Opcode::Tmpfile => {
                self.forget_entry(&mut reply);
                self.close_handle(&mut reply);
            }
            Opcode::Open | Opcode::Opendir => self.close_handle(&mut reply),
            Opcode::Readdirplus => self.forget_list(out),
            _ => {}
        }
    }

    fn forget_entry(&self, reply: &mut Reader<'_>) {
        if let Ok(entry) = reply.take::<EntryOut>()
            && entry.nodeid != 0
        {
            self.nodes.forget(entry.nodeid, 1);
        }
    }

    fn close_handle(&self, reply: &mut Reader<'_>) {
        if let Ok(opened) = reply.take::<OpenOut>()
            && let Some(Handle::File(open)) = self.handles.remove(opened.fh)
        {
            self.files.close(&open.node);
        }
    }

    fn forget_list(&self, mut list: &[u8]) {
        while let Ok((entry, rest)) = EntryOut::read_from_prefix(list) {
            let Ok((head, _)) = Dirent::read_from_prefix(rest) else { return };
            if entry.nodeid != 0 {
                self.nodes.forget(entry.nodeid, 1);
            }
            let fixed = size_of::<EntryOut>() + size_of::<Dirent>();
            let len = (fixed + head.namelen as usize).next_multiple_of(8);
            let Some(rest) = list.get(len..) else { return };
            list = rest;
        }
    }
}
