//! Text formats in which each line is one request: ARC's, LIRS's, SPC's, those of Microsoft
//! Research Cambridge, Tencent and Alibaba, and fio's `iolog`.
//!
//! Each function is or makes the reader of one format. A reader returns the pages that a line
//! requests, or None if the line is no access. Both reads and writes are accesses.

use crate::trace::extent::{Extents, Run, bounded, sectors_to_bytes};
use crate::trace::lines::{Parsed, number, shown, words};

/// Reads ARC's lines: first block, number of blocks, a field without meaning, number of the
/// request. Each block is a page.
pub fn arc(line: &[u8]) -> Parsed {
    let mut words = words(line);
    let mut next = |what: &str| match words.next() {
        Some(word) => number(word),
        None => Err(format!("no {what}; expected \"first_block count ignored request\"")),
    };
    let (first, count) = (next("first block")?, next("count")?);
    next("third field")?;
    next("number of the request")?;
    if let Some(more) = words.next() {
        return Err(format!("unexpected fifth field \"{}\"", shown(more)));
    }
    if count > 0 && first.checked_add(count - 1).is_none() {
        return Err("the request ends past block 2^64".into());
    }
    Ok(Some(Run { first, count: bounded(count)? }))
}

/// Reads LIRS's lines: a block number, which is a page; a line that begins with `*` marks a place
/// in the program and is no access.
pub fn lirs(line: &[u8]) -> Parsed {
    match line {
        [b'*', ..] => Ok(None),
        _ => Ok(Some(Run { first: number(line)?, count: 1 })),
    }
}

/// Reads SPC's lines. An ASU is a volume; fields after the timestamp are ignored.
pub fn spc(extents: Extents) -> impl FnMut(&[u8]) -> Parsed {
    table("ASU,LBA,bytes,opcode,timestamp", true, move |[asu, sector, bytes, opcode, _]| {
        one_of(opcode, ["r", "w"])?;
        let (sector, bytes) = (number(sector)?, number(bytes)?);
        extents.touched(number(asu)?, sectors_to_bytes(sector)?, bytes)
    })
}

/// Reads the lines of Microsoft Research Cambridge; offset and size in bytes. A disk of a host is a
/// volume.
pub fn msr(mut extents: Extents) -> impl FnMut(&[u8]) -> Parsed {
    const NAMES: &str = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime";
    table(NAMES, false, move |[timestamp, host, disk, kind, offset, bytes, _]| {
        number(timestamp)?;
        number(disk)?;
        one_of(kind, ["Read", "Write"])?;
        let disk = [host, disk].join(&b',');
        extents.touched_named(&disk, number(offset)?, number(bytes)?)
    })
}

/// Reads Tencent's lines: offset and size in sectors, 0 for a read or 1 for a write.
pub fn tencent(extents: Extents) -> impl FnMut(&[u8]) -> Parsed {
    const NAMES: &str = "Timestamp,Offset,Size,IOType,VolumeID";
    table(NAMES, false, move |[timestamp, sector, sectors, kind, volume]| {
        number(timestamp)?;
        one_of(kind, ["0", "1"])?;
        let (offset, bytes) = (sectors_to_bytes(number(sector)?)?, sectors_to_bytes(number(sectors)?)?);
        extents.touched(number(volume)?, offset, bytes)
    })
}

/// Reads Alibaba's lines; offset and length in bytes.
pub fn alibaba(extents: Extents) -> impl FnMut(&[u8]) -> Parsed {
    const NAMES: &str = "device_id,opcode,offset,length,timestamp";
    table(NAMES, false, move |[volume, opcode, offset, bytes, timestamp]| {
        number(timestamp)?;
        one_of(opcode, ["R", "W"])?;
        extents.touched(number(volume)?, number(offset)?, number(bytes)?)
    })
}

/// Reads fio's `iolog`, versions 2 and 3: what `--write_iolog` records and `--read_iolog` replays.
///
/// `file action offset length`, in version 3 with a time in front. Reads and writes are accesses;
/// opening, closing, syncing, waiting and trimming are not. A file is a volume.
pub fn fio(mut extents: Extents) -> impl FnMut(&[u8]) -> Parsed {
    // Whether lines have times, as the first line of the log tells. If a file has several logs,
    // each has such a line.
    let mut has_times = None;
    move |line| {
        if let b"fio version 2 iolog" | b"fio version 3 iolog" = line {
            has_times = Some(line == b"fio version 3 iolog");
            return Ok(None);
        }
        let Some(has_times) = has_times else {
            let expected = "\"fio version 2 iolog\" or \"fio version 3 iolog\"";
            return Err(format!("expected {expected}, found \"{}\"", shown(line)));
        };
        let mut words = words(line);
        let mut next = |what: &str| words.next().ok_or_else(|| format!("the line has no {what}"));
        if has_times {
            number(next("time")?)?;
        }
        let (file, action) = (next("file")?, next("action")?);
        match action {
            b"read" | b"write" => {
                let (offset, bytes) = (number(next("offset")?)?, number(next("length")?)?);
                extents.touched_named(file, offset, bytes).map(Some)
            }
            b"add" | b"open" | b"close" | b"wait" | b"sync" | b"datasync" | b"trim" => Ok(None),
            _ => Err(format!("\"{}\" is not an action of fio", shown(action))),
        }
    }
}

/// Makes the reader of a table: it splits a line at its commas into as many fields as `names` has,
/// without the white space around them, and hands them to `request`. The header, a line that begins
/// with the first of the names, is no access.
fn table<const N: usize>(
    names: &'static str,
    may_have_more: bool,
    mut request: impl FnMut([&[u8]; N]) -> Result<Run, String>,
) -> impl FnMut(&[u8]) -> Parsed {
    move |line| {
        let mut rest = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        let mut fields: [&[u8]; N] = [&[]; N];
        for (count, field) in fields.iter_mut().enumerate() {
            let missing = || format!("only {count} fields of {N}; expected \"{names}\"");
            *field = rest.next().ok_or_else(missing)?;
        }
        if !may_have_more && rest.next().is_some() {
            return Err(format!("more than {N} fields; expected \"{names}\""));
        }
        let first = names.split(',').next().unwrap_or_default();
        match fields[0].eq_ignore_ascii_case(first.as_bytes()) {
            true => Ok(None),
            false => request(fields).map(Some),
        }
    }
}

/// Checks that a field is the word for reads or the word for writes.
fn one_of(field: &[u8], [read, write]: [&str; 2]) -> Result<(), String> {
    match [read, write].iter().any(|word| field.eq_ignore_ascii_case(word.as_bytes())) {
        true => Ok(()),
        false => Err(format!("\"{}\" is neither {read} nor {write}", shown(field))),
    }
}
