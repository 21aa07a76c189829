//! The formats of disk images that would be served wrongly as raw disks.
//!
//! An export is the plain bytes of a file. Clients of a qcow2 image that is served so see a disk
//! that begins with the image's own tables, and destroy the image when they write. The first bytes
//! of such a file tell its format.
//!
//! A guest can write such bytes to its own raw disk. So `format = "raw"` in the export's section
//! switches the check off, and a server that takes over what another one has served does not check.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A format: its name, QEMU's name for it, and the bytes that its files have at an offset.
struct Format {
    name: &'static str,
    driver: &'static str,
    offset: usize,
    magic: &'static [u8],
}

const fn format(name: &'static str, driver: &'static str, offset: usize, magic: &'static [u8]) -> Format {
    Format { name, driver, offset, magic }
}

/// The formats, as `block/*.c` in QEMU recognizes them.
const FORMATS: [Format; 11] = [
    format("qcow", "qcow", 0, b"QFI\xfb\x00\x00\x00\x01"),
    format("qcow2", "qcow2", 0, b"QFI\xfb"),
    format("VMDK", "vmdk", 0, b"KDMV"),
    format("VMDK", "vmdk", 0, b"COWD"),
    format("VMDK", "vmdk", 0, b"# Disk DescriptorFile"),
    format("VDI", "vdi", 64, b"\x7f\x10\xda\xbe"),
    format("VHDX", "vhdx", 0, b"vhdxfile"),
    format("VHD", "vpc", 0, b"conectix"),
    format("QED", "qed", 0, b"QED\x00"),
    format("Parallels", "parallels", 0, b"WithoutFreeSpace"),
    format("Parallels", "parallels", 0, b"WithouFreSpacExt"),
];

/// The bytes that are looked at: all magics lie in them.
pub const HEAD_BYTES: usize = 512;

/// Checks that the file or device of an export can be a raw disk, by its length and its first
/// bytes. The error is a sentence.
pub fn check_file(path: &Path, len_bytes: u64) -> Result<(), String> {
    let mut head = [0; HEAD_BYTES];
    let len = HEAD_BYTES.min(usize::try_from(len_bytes).unwrap_or(HEAD_BYTES));
    // A read that fails is the export's problem, and reported when a client reads.
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut head[..len], 0));
    check(path, len_bytes, if read.is_ok() { &head[..len] } else { &[] })
}

/// The same for the first bytes of a store.
pub fn check(path: &Path, len_bytes: u64, head: &[u8]) -> Result<(), String> {
    let shown = path.display();
    if len_bytes == 0 {
        return Err(format!(
            "{shown} is empty, a disk of 0 bytes; `truncate -s 10G {shown}` makes it an empty disk of 10 GiB \
             (to serve it as it is: format = \"raw\")"
        ));
    }
    let is_it =
        |format: &&Format| head.get(format.offset..).is_some_and(|head| head.starts_with(format.magic));
    let Some(Format { name, driver, .. }) = FORMATS.iter().find(is_it) else { return Ok(()) };
    Err(format!(
        "{shown} is a {name} image, and an export is a raw disk; convert it (qemu-img convert -f {driver} -O raw \
         {shown} disk.raw), or let QEMU read the image through an export of its bytes (format = \"raw\" here; there \
         -drive driver={driver},file.driver=nbd,...)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_other_formats_and_empty_files_are_refused_with_a_remedy() {
        let path = Path::new("/d/disk");
        for format in &FORMATS {
            let mut head = vec![0; HEAD_BYTES];
            head[format.offset..][..format.magic.len()].copy_from_slice(format.magic);
            let why = check(path, 1 << 20, &head).unwrap_err();
            assert!(why.contains(format.name) && why.contains("qemu-img convert -f"), "{why}");
            // Shorter than the magic, or a byte of it differs.
            assert!(
                check(path, 4, &head[..format.offset + format.magic.len() - 1]).is_ok()
                    || format.driver == "qcow"
            );
            head[format.offset] ^= 1;
            assert_eq!(check(path, 1 << 20, &head), Ok(()));
        }
        assert!(check(path, 0, &[]).unwrap_err().contains("is empty"));
    }

    #[test]
    fn raw_disks_of_any_content_are_served() {
        let path = Path::new("/d/disk");
        let mut boot = vec![0; HEAD_BYTES];
        boot[510..].copy_from_slice(&[0x55, 0xaa]);
        for head in [vec![0; HEAD_BYTES], boot, b"LUKS\xba\xbe".to_vec(), b"x".to_vec(), Vec::new()] {
            assert_eq!(check(path, 1 << 20, &head), Ok(()));
        }
    }
}
