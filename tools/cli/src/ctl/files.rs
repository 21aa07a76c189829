//! `octavo ctl files`: which files of mounts are cached, as vmtouch(8) shows it for the kernel.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueHint};
use serde_json::Value;

use super::answer::{Json, show, tell};
use super::connection::ask;
use super::tables::{Column, number, table};
use crate::control::protocol::{Request, Verb};
use crate::error::Error;
use crate::output;
use crate::units::{human_bytes, percent};

/// What is read at a time.
const READ_BYTES: usize = 1 << 20;

/// `octavo ctl files`.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
The bar has a letter for each part of a file: O if all of it is resident, o if some is, else a dot.
The 1000 files with the most resident bytes are shown.

Examples:
  octavo ctl files                      the files of all mounts
  octavo ctl files /mnt/data/home       those below a directory
  octavo ctl files touch /mnt/data/db/1.sst
  octavo ctl files evict /mnt/data/home"
)]
pub struct Files {
    #[command(subcommand)]
    change: Option<Change>,
    /// Only files at or below this path
    #[arg(value_hint = ValueHint::AnyPath)]
    below: Option<PathBuf>,
    #[command(flatten)]
    json: Json,
}

#[derive(Subcommand)]
enum Change {
    /// Read a file, so that its pages are cached
    Touch {
        /// A file of a mount
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Evict the pages of a file, or of all files below a directory; dirty pages are written first
    Evict {
        /// A file or a directory of a mount
        #[arg(value_hint = ValueHint::AnyPath)]
        below: PathBuf,
        #[command(flatten)]
        json: Json,
    },
}

impl Files {
    /// Asks, and prints the answer.
    pub fn ask(&self, socket: &Path) -> Result<(), Error> {
        match &self.change {
            None => {
                let mut request = Request::new(Verb::Files);
                if let Some(below) = &self.below {
                    request = request.at(&absolute(below)?);
                }
                tell(&self.json, socket, &request, shown)
            }
            Some(Change::Touch { file }) => {
                let bytes =
                    touch(file).map_err(|error| Error::failed(format!("{}: {error}", file.display())))?;
                output::text(&format!("{} read\n", human_bytes(bytes)))
            }
            Some(Change::Evict { below, json }) => {
                let request = Request::new(Verb::FilesEvict).at(&absolute(below)?);
                let answer = ask(socket, &request)?;
                if number(&answer, "count") > 0 || json.json {
                    show(json, &answer, |answer| {
                        format!("{} evicted\n", human_bytes(number(answer, "evicted_bytes")))
                    })?;
                }
                if number(&answer, "count") == 0 {
                    return Err(Error::failed(format!("{}: no cached file is here", below.display())));
                }
                Ok(())
            }
        }
    }
}

/// The path without links, as the server knows it.
fn absolute(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(|error| Error::failed(format!("{}: {error}", path.display())))
}

/// Reads a file to its end through the mount. Returns its bytes.
fn touch(path: &Path) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    let (mut buffer, mut total) = (vec![0; READ_BYTES], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(total),
            count => total += count as u64,
        }
    }
}

const COLUMNS: &[Column<Value>] = &[
    ("FILE", |file| octavo::display_name(file["path"].as_str().unwrap_or_default())),
    ("PARTITION", |file| file["partition"].as_str().unwrap_or_default().to_owned()),
    ("RESIDENT PARTS", |file| format!("[{}]", file["parts"].as_str().unwrap_or_default())),
    ("RESIDENT", |file| human_bytes(number(file, "resident_bytes"))),
    ("OF", |file| human_bytes(number(file, "len_bytes"))),
    ("", |file| percent(number(file, "resident_bytes"), number(file, "len_bytes"))),
    ("DIRTY", |file| human_bytes(number(file, "dirty_bytes"))),
];

fn shown(answer: &Value) -> String {
    let (count, resident) = (number(answer, "count"), human_bytes(number(answer, "resident_bytes")));
    let files = answer["files"].as_array().map_or(&[][..], Vec::as_slice);
    format!("{}\n{count} files, {resident} resident\n", table(3, COLUMNS, files))
}
