//! Traces of block numbers, a block a page: those that came with the papers on ARC and on LIRS.

use std::collections::VecDeque;

use crate::trace::extent::{Run, bounded};
use crate::trace::lines::{Format, number, shown, words};

/// ARC's traces: first block, count of blocks, a field without meaning, number of the request. Each
/// block is a page.
pub struct Arc;

impl Format for Arc {
    fn line(&mut self, line: &[u8], runs: &mut VecDeque<Run>) -> Result<(), String> {
        let mut words = words(line);
        let mut next = |what: &str| match words.next() {
            Some(word) => number(word),
            None => Err(format!("no {what}; \"first_block count ignored request\" is expected")),
        };
        let (first, count) = (next("first block")?, next("count")?);
        next("third field")?;
        next("number of the request")?;
        if let Some(more) = words.next() {
            return Err(format!("a fifth field, \"{}\"", shown(more)));
        }
        if count > 0 && first.checked_add(count - 1).is_none() {
            return Err("the request ends past block 2^64".into());
        }
        runs.push_back(Run { first, count: bounded(count)? });
        Ok(())
    }
}

/// LIRS's traces: a block number a line; a line that begins with `*` marks a place in the program
/// and is no access.
pub struct Lirs;

impl Format for Lirs {
    fn line(&mut self, line: &[u8], runs: &mut VecDeque<Run>) -> Result<(), String> {
        if line[0] != b'*' {
            runs.push_back(Run { first: number(line)?, count: 1 });
        }
        Ok(())
    }
}
