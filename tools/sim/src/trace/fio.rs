//! fio's `iolog`, versions 2 and 3: what `--write_iolog` records and `--read_iolog` replays.
//!
//! `file action offset length`, in version 3 with a time in front. Reads and writes are accesses;
//! opening, closing, syncing, waiting and trimming are not. A file is a volume, numbered as they
//! come.

use std::collections::VecDeque;

use crate::trace::extent::{PageBytes, Run, Volumes};
use crate::trace::lines::{Format, number, shown, words};

/// The log of a job of fio.
pub struct Fio {
    page_bytes: PageBytes,
    files: Volumes,
    /// What the first line says.
    has_times: Option<bool>,
}

impl Fio {
    /// Before its first line.
    pub fn new(page_bytes: PageBytes) -> Self {
        Fio { page_bytes, files: Volumes::default(), has_times: None }
    }
}

impl Format for Fio {
    fn line(&mut self, line: &[u8], runs: &mut VecDeque<Run>) -> Result<(), String> {
        let has_times = match (line, self.has_times) {
            // Logs put one behind the other have more than one first line.
            (b"fio version 2 iolog", _) => return self.begin(false),
            (b"fio version 3 iolog", _) => return self.begin(true),
            (_, Some(has_times)) => has_times,
            (_, None) => {
                let expected = "\"fio version 2 iolog\" or \"fio version 3 iolog\"";
                return Err(format!("\"{}\" stands where {expected} is expected", shown(line)));
            }
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
                // A request that is refused names no file.
                self.page_bytes.touched(0, offset, bytes)?;
                runs.push_back(self.page_bytes.touched(self.files.number(file)?, offset, bytes)?);
                Ok(())
            }
            b"add" | b"open" | b"close" | b"wait" | b"sync" | b"datasync" | b"trim" => Ok(()),
            _ => Err(format!("\"{}\" is no action", shown(action))),
        }
    }
}

impl Fio {
    fn begin(&mut self, has_times: bool) -> Result<(), String> {
        self.has_times = Some(has_times);
        Ok(())
    }
}
