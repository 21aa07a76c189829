//! Traces of requests to disks, as fields between commas: SPC's, those of Microsoft Research in
//! Cambridge, Tencent's and Alibaba's.
//!
//! Reads and writes are accesses alike. A line of the fields' names at the top is passed over.

use std::collections::VecDeque;

use crate::trace::extent::{PageBytes, Run, Volumes};
use crate::trace::lines::{Format, fields, number, shown};

/// SPC's: ASU, sector, bytes, `r` or `w`, seconds, and whatever else. An ASU is a volume.
pub struct Spc(pub PageBytes);

impl Format for Spc {
    fn line(&mut self, line: &[u8], runs: &mut VecDeque<Run>) -> Result<(), String> {
        let expected = "\"ASU,LBA,bytes,opcode,timestamp\"";
        let [asu, sector, bytes, opcode, _] = fields(line, expected, true)?;
        if is_header(asu, b"ASU") {
            return Ok(());
        }
        one_of(opcode, &[b"r", b"w"])?;
        let [sector, bytes, asu] = [number(sector)?, number(bytes)?, number(asu)?];
        let offset = sector.checked_mul(512).ok_or("the sector lies past 2^64 bytes")?;
        runs.push_back(self.0.touched(asu, offset, bytes)?);
        Ok(())
    }
}

/// Microsoft Research Cambridge's: time, host, number of the disk, `Read` or `Write`, offset and
/// length in bytes, time it took. A disk of a host is a volume, numbered as they come.
pub struct Msr {
    page_bytes: PageBytes,
    disks: Volumes,
    disk: Vec<u8>,
}

impl Msr {
    /// With no disk seen.
    pub fn new(page_bytes: PageBytes) -> Self {
        Msr { page_bytes, disks: Volumes::default(), disk: Vec::new() }
    }
}

impl Format for Msr {
    fn line(&mut self, line: &[u8], runs: &mut VecDeque<Run>) -> Result<(), String> {
        let expected = "\"Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\"";
        let [timestamp, host, disk, kind, offset, bytes, _] = fields(line, expected, false)?;
        if is_header(timestamp, b"Timestamp") {
            return Ok(());
        }
        number(timestamp)?;
        number(disk)?;
        one_of(kind, &[b"Read", b"Write"])?;
        let (offset, bytes) = (number(offset)?, number(bytes)?);
        // A request that is refused names no disk.
        self.page_bytes.touched(0, offset, bytes)?;
        self.disk.clear();
        self.disk.extend_from_slice(host);
        self.disk.push(b',');
        self.disk.extend_from_slice(disk);
        runs.push_back(self.page_bytes.touched(self.disks.number(&self.disk)?, offset, bytes)?);
        Ok(())
    }
}

/// Tencent's: time, offset and length in sectors, 0 for a read or 1 for a write, volume.
pub struct Tencent(pub PageBytes);

impl Format for Tencent {
    fn line(&mut self, line: &[u8], runs: &mut VecDeque<Run>) -> Result<(), String> {
        let expected = "\"Timestamp,Offset,Size,IOType,VolumeID\"";
        let [timestamp, sector, sectors, kind, volume] = fields(line, expected, false)?;
        if is_header(timestamp, b"Timestamp") {
            return Ok(());
        }
        number(timestamp)?;
        one_of(kind, &[b"0", b"1"])?;
        runs.push_back(self.0.touched_sectors(number(volume)?, number(sector)?, number(sectors)?)?);
        Ok(())
    }
}

/// Alibaba's: volume, `R` or `W`, offset and length in bytes, time.
pub struct Alibaba(pub PageBytes);

impl Format for Alibaba {
    fn line(&mut self, line: &[u8], runs: &mut VecDeque<Run>) -> Result<(), String> {
        let expected = "\"device_id,opcode,offset,length,timestamp\"";
        let [volume, opcode, offset, bytes, timestamp] = fields(line, expected, false)?;
        if is_header(volume, b"device_id") {
            return Ok(());
        }
        number(timestamp)?;
        one_of(opcode, &[b"R", b"W"])?;
        runs.push_back(self.0.touched(number(volume)?, number(offset)?, number(bytes)?)?);
        Ok(())
    }
}

fn is_header(first_field: &[u8], name: &[u8]) -> bool {
    first_field.eq_ignore_ascii_case(name)
}

fn one_of(field: &[u8], names: &[&[u8]; 2]) -> Result<(), String> {
    if names.iter().any(|name| field.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    let [read, write] = names.map(shown);
    Err(format!("\"{}\" is neither {read} nor {write}", shown(field)))
}
