//! Extended attributes, access control lists among them.

use std::os::fd::AsFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::request::{Request, put};
use crate::fs::Fs;
use crate::lower;
use crate::wire::{GetxattrIn, GetxattrOut, SetxattrIn};

/// The longest value and the longest list of the kernel.
const VALUE_MAX: usize = 64 << 10;

/// Puts what `get` returns into the reply, or only its length, which `measure` returns, if the
/// caller asked for that.
fn answer(
    wanted: GetxattrIn,
    out: &mut Vec<u8>,
    measure: impl FnOnce() -> Result<usize, Errno>,
    get: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) -> Result<(), Errno> {
    if wanted.size == 0 {
        put(out, &GetxattrOut { size: measure()? as u32, padding: 0 });
        return Ok(());
    }
    let (start, most) = (out.len(), (wanted.size as usize).min(VALUE_MAX));
    out.resize(start + most, 0);
    let len = get(&mut out[start..])?;
    out.truncate(start + len);
    Ok(())
}

/// Returns a list of names, which end with a zero byte each, without those of trusted attributes.
fn without_trusted(names: &[u8]) -> Vec<u8> {
    let names = names.split_inclusive(|byte| *byte == 0);
    names.filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect()
}

impl Fs {
    pub(super) fn getxattr(&self, mut request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let node = self.nodes.get(request.head.nodeid)?;
        let place = node.place.at()?;
        let wanted = request.body.take()?;
        let name = request.body.name()?;
        let path = lower::link_of(place.as_fd());
        answer(
            wanted,
            out,
            || rustix::fs::getxattr_query(&path, name),
            |value| rustix::fs::getxattr(&path, name, value),
        )
    }

    pub(super) fn listxattr(&self, mut request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let node = self.nodes.get(request.head.nodeid)?;
        let place = node.place.at()?;
        let wanted = request.body.take()?;
        let path = lower::link_of(place.as_fd());
        let mut names = vec![0; VALUE_MAX];
        let len = rustix::fs::listxattr(&path, &mut names[..])?;
        names.truncate(len);
        // The mount is root's, and sees more than other users may.
        if request.caller().uid != 0 {
            names = without_trusted(&names);
        }
        let list = &names;
        let copy = |room: &mut [u8]| {
            room.get_mut(..list.len()).ok_or(Errno::RANGE)?.copy_from_slice(list);
            Ok(list.len())
        };
        answer(wanted, out, || Ok(list.len()), copy)
    }

    pub(super) fn setxattr(&self, mut request: Request<'_>) -> Result<(), Errno> {
        let node = self.nodes.get(request.head.nodeid)?;
        let place = node.place.at()?;
        let SetxattrIn { size, flags, setxattr_flags, .. } = request.body.take()?;
        let name = request.body.name()?;
        let value = request.body.bytes(size as usize)?;
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        rustix::fs::setxattr(lower::link_of(place.as_fd()), name, value, flags)?;
        // A list whose group the caller is not in: the kernel asks for what it would do itself.
        if setxattr_flags & 1 != 0 {
            let mode = u32::from(node.stat()?.stx_mode);
            lower::set_mode(node.place.at()?, mode & !0o2000)?;
        }
        Ok(())
    }

    pub(super) fn removexattr(&self, mut request: Request<'_>) -> Result<(), Errno> {
        let node = self.nodes.get(request.head.nodeid)?;
        let place = node.place.at()?;
        let name = request.body.name()?;
        rustix::fs::removexattr(lower::link_of(place.as_fd()), name)
    }
}
