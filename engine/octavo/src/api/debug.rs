//! How handles show themselves: by name and size. No lock is taken, so that a debugger's view or a
//! log line never waits.

use std::fmt::{Debug, Formatter, Result};

use super::cache::Cache;
use super::owned_pin::OwnedPin;
use super::pin::Pin;
use super::queue::Queue;
use super::recording::Recording;
use crate::control::Partition;
use crate::flight::Object;

impl Debug for Cache {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let bytes = self.core().shared.budget.max_bytes();
        f.debug_struct("Cache").field("memory_max_bytes", &bytes).finish_non_exhaustive()
    }
}

impl Debug for Partition {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Partition").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Debug for Object {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut shown = f.debug_struct("Object");
        shown.field("name", &self.name()).field("len_bytes", &self.len_bytes()).finish_non_exhaustive()
    }
}

impl Debug for Queue {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Queue").field("pending", &self.pending()).finish_non_exhaustive()
    }
}

impl Debug for Pin<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Pin").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Debug for OwnedPin {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("OwnedPin").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Debug for Recording {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Recording").field("header", self.header()).finish_non_exhaustive()
    }
}
