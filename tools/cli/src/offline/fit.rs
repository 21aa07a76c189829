//! `octavo plan --fit`: what `memory_max` holds a working set whole.
//!
//! Not here: the arithmetic. `octavo` computes it, with the code that divides a cache's memory.

use octavo::{CacheConfig, Sizing};
use serde::Serialize;

use super::inputs::Json;
use crate::error::Error;
use crate::units::{human_bytes, percent};

/// What is to fit, and into which memory.
pub struct Fit {
    pub working_set_bytes: u64,
    pub page_bytes: u64,
    pub partitions: u32,
    /// A memory that is given, for the question how much of the working set it holds.
    pub memory_bytes: Option<u64>,
}

/// A line of JSON: how a memory is divided.
#[derive(Serialize)]
struct Line {
    /// `fit`: the memory that holds the working set. `given`: a memory, which may not.
    answer: &'static str,
    working_set_bytes: u64,
    page_bytes: u64,
    partitions: u32,
    memory_max_bytes: u64,
    frames_bytes: u64,
    metadata_bytes: u64,
    learning_bytes: u64,
    buffers_bytes: u64,
    rounding_bytes: u64,
    holds_bytes: u64,
    partition_max_bytes: Option<u64>,
}

impl Fit {
    /// Writes the answer as a table, or as JSON.
    pub fn run(&self, mut json: Json) -> Result<(), Error> {
        let page_bytes = u32::try_from(self.page_bytes).unwrap_or(u32::MAX);
        let config = CacheConfig { page_bytes, ..CacheConfig::default() };
        let refused = |option: &str, bytes: u64, error: octavo::Error| {
            Error::Usage(format!("{option} {}: {error}", human_bytes(bytes)))
        };
        let fitting = config.fitting(self.working_set_bytes, self.partitions);
        let fitting = fitting.map_err(|error| refused("--fit", self.working_set_bytes, error))?;
        // Without a memory, the answer to the question in reverse: what as much memory holds.
        let given_bytes = self.memory_bytes.unwrap_or(self.working_set_bytes);
        let given = CacheConfig { memory_max_bytes: given_bytes, ..config }.sizing(self.partitions);
        let given = match given {
            Err(error) if self.memory_bytes.is_some() => {
                return Err(refused("--memory", given_bytes, error));
            }
            given => given.ok(),
        };
        let mut lines = vec![self.line("fit", &fitting)];
        lines.extend(given.as_ref().map(|given| self.line("given", given)));
        json.lines_or(&lines, || self.table(&fitting, given.as_ref()))
    }

    fn line(&self, answer: &'static str, sizing: &Sizing) -> Line {
        Line {
            answer,
            working_set_bytes: self.working_set_bytes,
            page_bytes: self.page_bytes,
            partitions: sizing.partitions,
            memory_max_bytes: sizing.memory_max_bytes,
            frames_bytes: sizing.frames_bytes,
            metadata_bytes: sizing.metadata_bytes,
            learning_bytes: sizing.learning_bytes,
            buffers_bytes: sizing.buffers_bytes,
            rounding_bytes: sizing.rounding_bytes,
            holds_bytes: sizing.working_set_bytes,
            partition_max_bytes: sizing.partition_max_bytes,
        }
    }

    fn table(&self, fitting: &Sizing, given: Option<&Sizing>) -> String {
        let of = |bytes: u64| percent(bytes, self.working_set_bytes);
        let row = |name: &str, bytes: u64, what: &str| {
            format!("{name:<12} {:>11} {:>8}  {what}\n", human_bytes(bytes), of(bytes))
        };
        let each = match fitting.partition_max_bytes {
            Some(max) => format!(
                "Give each of the {} partitions max = \"{}KiB\" in octavo.toml.\n",
                fitting.partitions,
                max >> 10
            ),
            None => String::new(),
        };
        let given = given.map_or(String::new(), |given| {
            format!(
                "memory_max = \"{}\" holds {} of it ({}).\n",
                plain_bytes(given.memory_max_bytes),
                human_bytes(given.working_set_bytes.min(self.working_set_bytes)),
                of(given.working_set_bytes.min(self.working_set_bytes)),
            )
        });
        [
            format!("A working set of {}, in pages of {} bytes:\n", self.whole(), self.page_bytes),
            row("frames", fitting.frames_bytes, "the pages, and 1 % for uneven sets"),
            row("metadata", fitting.metadata_bytes, "which page is in which frame"),
            row("learning", fitting.learning_bytes, "what policies and miss curves are learned in"),
            row("buffers", fitting.buffers_bytes, "set aside; pages lend more while requests need it"),
            row("rounding", fitting.rounding_bytes, "partitions have whole segments"),
            row("memory_max", fitting.memory_max_bytes, "the sum"),
            format!("\nmemory_max = \"{}\" holds all of it.\n", plain_bytes(fitting.memory_max_bytes)),
            given,
            each,
        ]
        .concat()
    }

    fn whole(&self) -> String {
        match self.partitions {
            1 => human_bytes(self.working_set_bytes),
            count => format!("{} in {count} equal partitions", human_bytes(self.working_set_bytes)),
        }
    }
}

/// A size without rounding, as octavo.toml takes it.
fn plain_bytes(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 30) => format!("{}GiB", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}KiB", bytes >> 10),
        _ => bytes.to_string(),
    }
}
