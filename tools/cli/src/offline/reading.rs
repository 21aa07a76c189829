//! The options that say how a trace is read.

use clap::Args;
use octavo_sim::trace::{Columns, Format, Options, Separator};

use crate::units::size_bytes;

/// How traces are read.
#[derive(Args)]
pub struct Reading {
    /// What the traces' bytes mean, where a file's name does not tell
    #[arg(long, value_name = "FORMAT", help = format_help())]
    format: Option<Format>,
    /// What the columns of a table (CSV) are: time, op, offset, size, volume, key, and - for
    /// others, in their order, or by the names in the first line: offset=Offset,size=Length.
    /// Units: offset:sectors, size:kib, offset:pages
    #[arg(long, value_name = "COLUMN,...")]
    columns: Option<Columns>,
    /// What stands between the columns: comma, semicolon, tab, space, or one character [default:
    /// comma]
    #[arg(long, value_name = "CHAR", requires = "columns")]
    separator: Option<Separator>,
    /// Lines at the top of a table that are no requests [default: 0; 1 where columns have names]
    #[arg(long, value_name = "N", requires = "columns")]
    header_lines: Option<u64>,
    /// How long a page is: for formats that speak of bytes or sectors, and for sizes in bytes
    #[arg(long, visible_alias = "page-size", value_name = "SIZE", value_parser = size_bytes, default_value = "4096")]
    page_bytes: u64,
    /// Pass over malformed lines and records, and count them
    #[arg(long)]
    skip_bad: bool,
}

impl Reading {
    /// The same in the words of the reader.
    pub fn options(&self) -> Options {
        let columns = self.columns.clone().map(|columns| {
            let columns = match self.separator {
                Some(separator) => columns.separated_by(separator),
                None => columns,
            };
            match self.header_lines {
                Some(lines) => columns.below(lines),
                None => columns,
            }
        });
        Options { format: self.format, columns, page_bytes: self.page_bytes, skip_bad: self.skip_bad }
    }
}

fn format_help() -> String {
    let names: Vec<&str> = Format::all().map(Format::name).collect();
    format!("What the traces' bytes mean, where a file's name does not tell: {}", names.join(", "))
}
