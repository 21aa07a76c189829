//! The default without a configuration: a demo disk with known content, and the configuration that
//! serves it.
//!
//! The disk is 1 GiB, sparse, made once and never overwritten. Three regions of 16
//! MiB (the beginning, the middle and the end) hold text; the rest reads as zeros. Every page of 4
//! KiB in them is 64 lines of 64 bytes, and each line says where it is:
//!
//! ```text
//! octavo demo: page 0000131072, line 07, byte 0x00000000200001c0.
//! ```
//!
//! The disk's first page differs: it explains the disk.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use crate::config::Config;
use crate::config::read::quoted;
use crate::config::source::Source;
use crate::environment::{Environment, make_private_dir};
use crate::error::Error;

/// The length of the disk.
pub const DISK_BYTES: u64 = 1 << 30;

const PAGE_BYTES: u64 = 4096;
const LINE_BYTES: u64 = 64;
const REGION_BYTES: u64 = 16 << 20;
const REGIONS: [u64; 3] = [0, DISK_BYTES / 2, DISK_BYTES - REGION_BYTES];

const FIRST_PAGE: &str = "\
This is the demo disk of Octavo, a page cache in user space.

It is 1 GiB long and sparse. Three regions of 16 MiB hold text:
they begin at byte 0, at byte 536870912 and at byte 1056964608.
The rest reads as zeros, until somebody writes there.

In these regions every page of 4096 bytes is 64 lines of 64 bytes,
and each line says in which page and at which byte it stands.
Only this page, the first, is different.

Write to it as you like. To have it new, stop the server and
remove the file.
";

const DEFAULT: &str = include_str!("default.toml");

/// Makes the disk if it is missing, and returns the configuration that serves it.
pub fn config(environment: &Environment) -> Result<Config, Error> {
    let directory = environment.cache_dir()?;
    let disk = directory.join("demo.raw");
    if !disk.exists() {
        make_private_dir(&directory).map_err(Error::failed)?;
        make(&disk).map_err(|error| {
            Error::failed(format!("cannot make the demo disk {}: {error}", disk.display()))
        })?;
        log::info!("made the demo disk {}", disk.display());
    }
    environment.make_runtime_dir()?;
    for path in [&disk, &environment.nbd_socket()] {
        if path.to_str().is_none() {
            let why = "this path is not UTF-8; set XDG_CACHE_HOME and XDG_RUNTIME_DIR to paths that are";
            return Err(Error::Usage(format!("{}: {why}", path.display())));
        }
    }
    let text = DEFAULT
        .replace("{demo}", &quoted(&disk.display().to_string()))
        .replace("{nbd}", &quoted(&format!("unix:{}", environment.nbd_socket().display())))
        .replace("{control}", &quoted(&format!("unix:{}", environment.control_socket().display())));
    Config::parse(Source::new("<default>".into(), text))
}

/// Writes the disk under another name and renames it: an unfinished disk is never served.
fn make(disk: &Path) -> std::io::Result<()> {
    let unfinished = disk.with_extension(format!("raw.{}", std::process::id()));
    let made = fill(&unfinished).and_then(|()| std::fs::rename(&unfinished, disk));
    if made.is_err() {
        // Best effort: the error to report is the first.
        let _ = std::fs::remove_file(&unfinished);
    }
    made
}

fn fill(path: &Path) -> std::io::Result<()> {
    let file = File::create(path)?;
    file.set_len(DISK_BYTES)?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    for region in REGIONS {
        file.seek(SeekFrom::Start(region))?;
        for page in region / PAGE_BYTES..(region + REGION_BYTES) / PAGE_BYTES {
            file.write_all(&page_text(page))?;
        }
    }
    file.into_inner()?.sync_all()
}

/// The content of a page of one of the regions on a new disk.
fn page_text(page: u64) -> Vec<u8> {
    if page == 0 {
        let mut text = FIRST_PAGE.as_bytes().to_vec();
        text.resize(PAGE_BYTES as usize, b'\n');
        return text;
    }
    let lines = (0..PAGE_BYTES / LINE_BYTES).map(|line| {
        let byte = page * PAGE_BYTES + line * LINE_BYTES;
        format!("octavo demo: page {page:010}, line {line:02}, byte {byte:#018x}.\n")
    });
    lines.collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_a_region_is_64_lines_of_64_bytes_with_their_position() {
        for page in [0, 1, 4095, 131_072, DISK_BYTES / PAGE_BYTES - 1] {
            assert_eq!(page_text(page).len() as u64, PAGE_BYTES, "page {page}");
        }
        let text = page_text(131_072);
        let line = std::str::from_utf8(&text[7 * 64..8 * 64]).unwrap();
        assert_eq!(line, "octavo demo: page 0000131072, line 07, byte 0x00000000200001c0.\n");
    }
}
