//! The options that say how a trace is read.

use clap::Args;
use octavo_sim::trace::{Columns, Format, Options, Separator};

use crate::units::size_bytes;

/// How traces are read.
#[derive(Args)]
pub struct Reading {
    /// The format of the traces, if their names do not tell
    #[arg(long, value_name = "FORMAT", help = format_help())]
    format: Option<Format>,
    /// What the columns of a table (CSV) are: time, op, offset, size, volume, key, count, and -
    /// for others, in their order, or by the names in the first line: offset=Offset,size=Length.
    /// Units: offset:sectors, size:kib, offset:pages
    #[arg(long, value_name = "COLUMN,...")]
    columns: Option<Columns>,
    /// The separator of the columns: comma, semicolon, tab, space, or one character [default:
    /// comma]
    #[arg(long, value_name = "CHAR", requires = "columns")]
    separator: Option<Separator>,
    /// Skip this many lines at the top of a table [default: 0; 1 if columns are named]
    #[arg(long, value_name = "N", requires = "columns")]
    header_lines: Option<u64>,
    /// The size of a page, for formats with offsets in bytes or sectors, and for sizes in bytes
    #[arg(long, visible_alias = "page-size", value_name = "SIZE", value_parser = size_bytes, default_value = "4096")]
    page_bytes: u64,
    /// Skip malformed lines and records, and count them
    #[arg(long)]
    skip_bad: bool,
}

impl Reading {
    /// The same as options of the reader.
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
    format!("The format of the traces, if their names do not tell: {}", names.join(", "))
}
