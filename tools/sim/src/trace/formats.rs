//! Text formats in which each line is one request: ARC's, LIRS's, SPC's, those of Microsoft
//! Research Cambridge, Tencent and Alibaba, and fio's `iolog`.
//!
//! Each function is or makes the reader of one format. A reader returns the pages that a line
//! requests, or None if the line is no access. Both reads and writes are accesses.

use crate::trace::extent::{Extents, Run, bounded, sectors_to_bytes};
use crate::trace::fields::{moment, number, shown, split_last_word, whole, words};
use crate::trace::lines::Parsed;

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
    Ok(Some(Run::once(first, bounded(count)?)))
}

/// Reads LIRS's lines: a block number, which is a page; a line that begins with `*` marks a place
/// in the program and is no access.
pub fn lirs(line: &[u8]) -> Parsed {
    match line {
        [b'*', ..] => Ok(None),
        _ => Ok(Some(Run::once(number(line)?, 1))),
    }
}

/// Reads SPC's lines. An ASU is a volume; fields after the timestamp are ignored.
pub fn spc(extents: Extents) -> impl FnMut(&[u8]) -> Parsed {
    table("ASU,LBA,bytes,opcode,timestamp", true, move |[asu, sector, bytes, opcode, _]| {
        one_of(opcode, ["r", "w"])?;
        extents.touched(whole(asu)?, sectors_to_bytes(whole(sector)?)?, whole(bytes)?)
    })
}

/// Reads the lines of Microsoft Research Cambridge; offset and size in bytes. A disk of a host is a
/// volume.
pub fn msr(mut extents: Extents) -> impl FnMut(&[u8]) -> Parsed {
    const NAMES: &str = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime";
    table(NAMES, false, move |[timestamp, host, disk, kind, offset, bytes, _]| {
        moment(timestamp)?;
        whole(disk)?;
        one_of(kind, ["Read", "Write"])?;
        let disk = [host, disk].join(&b',');
        extents.touched_named(&disk, whole(offset)?, whole(bytes)?)
    })
}

/// Reads Tencent's lines: offset and size in sectors, 0 for a read or 1 for a write.
pub fn tencent(extents: Extents) -> impl FnMut(&[u8]) -> Parsed {
    const NAMES: &str = "Timestamp,Offset,Size,IOType,VolumeID";
    table(NAMES, false, move |[timestamp, sector, sectors, kind, volume]| {
        moment(timestamp)?;
        one_of(kind, ["0", "1"])?;
        let (offset, bytes) = (sectors_to_bytes(whole(sector)?)?, sectors_to_bytes(whole(sectors)?)?);
        extents.touched(whole(volume)?, offset, bytes)
    })
}

/// Reads Alibaba's lines; offset and length in bytes.
pub fn alibaba(extents: Extents) -> impl FnMut(&[u8]) -> Parsed {
    const NAMES: &str = "device_id,opcode,offset,length,timestamp";
    table(NAMES, false, move |[volume, opcode, offset, bytes, timestamp]| {
        moment(timestamp)?;
        one_of(opcode, ["R", "W"])?;
        extents.touched(whole(volume)?, whole(offset)?, whole(bytes)?)
    })
}

/// Reads fio's `iolog`, versions 2 and 3: what `--write_iolog` records and `--read_iolog` replays.
///
/// `file action offset length`, in version 3 with a time in front. Reads and writes are accesses;
/// opening, closing, syncing, waiting and trimming are not. A file is a volume. fio does not quote
/// names, so a name with blanks ends where the action begins, counted from the line's end.
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
        let event = if has_times { after_time(line)? } else { line };
        fio_event(event, &mut extents)
    }
}

/// Returns a line of fio's version 3 without the time in front.
fn after_time(line: &[u8]) -> Result<&[u8], String> {
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    number(&line[..end])?;
    Ok(line[end..].trim_ascii_start())
}

fn fio_event(line: &[u8], extents: &mut Extents) -> Parsed {
    let (file, last) = split_last_word(line);
    if !file.is_empty() && matches!(last, b"add" | b"open" | b"close") {
        return Ok(None);
    }
    // The numbers behind the action, from the last on: the length and the offset.
    let is_number = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    let mut numbers: [&[u8]; 2] = [&[]; 2];
    let mut count = 0;
    let mut file = file;
    let mut action = last;
    while count < numbers.len() && is_number(action) {
        numbers[count] = action;
        count += 1;
        (file, action) = split_last_word(file);
    }
    if file.is_empty() {
        let is_access = matches!(action, b"read" | b"write");
        return Err(if is_access { "the line has no file" } else { "the line has no action" }.into());
    }
    match (action, count) {
        (b"read" | b"write", 0) => Err("the line has no offset".into()),
        (b"read" | b"write", 1) => Err("the line has no length".into()),
        (b"read" | b"write", _) => {
            let [bytes, offset] = numbers;
            extents.touched_named(file, number(offset)?, number(bytes)?).map(Some)
        }
        (b"wait" | b"sync" | b"datasync" | b"syncfs" | b"sync_file_range" | b"trim", _) => Ok(None),
        _ => Err(format!("\"{}\" is not an action of fio", shown(action))),
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

/// Checks that a field is the word for reads or the word for writes. A word that is a number may
/// have become `1.0` in a table program.
fn one_of(field: &[u8], [read, write]: [&str; 2]) -> Result<(), String> {
    let word = field.strip_suffix(b".0").unwrap_or(field);
    if [read, write].iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes())) {
        return Ok(());
    }
    Err(format!("\"{}\" is neither {read} nor {write}", shown(field)))
}
