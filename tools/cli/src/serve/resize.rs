//! Changes of an export's length while it is served.
//!
//! The server adopts a new length only when an operator asks for it: a file that another program
//! lengthens may be incomplete, and a shorter file may be a mistake. The log reports both
//! (`watch.rs`).

use octavo::Object;

use super::catalog::Catalog;
use crate::units::human_bytes;

impl Catalog {
    /// Adopts the present length of an export's file or device. With a length, changes the file's
    /// length first. Notifies the guests of all exports that share the object. Returns the former
    /// and the new length. The error is a sentence.
    ///
    /// The lists are not locked meanwhile: a store may take long to answer.
    pub fn resize_export(
        &self,
        name: &str,
        len_bytes: Option<u64>,
        shrink: bool,
    ) -> Result<(u64, u64), String> {
        let state = self.state()?;
        state.exports.named(name)?;
        drop(state);
        let gone = || format!("export \"{name}\" is being removed");
        let object = self.server.object(name).ok_or_else(gone)?;
        if len_bytes.is_some() && object.read_only() {
            return Err(format!(
                "export \"{name}\" is read-only; change the length of {}, and then resize without a size",
                object.store().name()
            ));
        }
        let former = object.len_bytes();
        if !shrink {
            refuse_loss(name, &object, len_bytes)?;
        }
        let changed = match len_bytes {
            Some(len_bytes) => object.set_len_bytes(len_bytes),
            None => object.adopt_len_bytes().map(drop),
        };
        // Even after a failure the length may be another.
        let now = object.len_bytes();
        if now != former {
            self.server.announce_len(&object);
            log::info!(event = "changed", export = name; "export \"{name}\" is resized: {former} bytes -> {now} bytes");
        }
        changed.map(|()| (former, now)).map_err(|error| error.to_string())
    }
}

/// Refuses a length that cuts off bytes of the file, or of the cache. The error is a sentence.
fn refuse_loss(name: &str, object: &Object, len_bytes: Option<u64>) -> Result<(), String> {
    let present = object.store().present_len_bytes().map_err(|error| error.to_string())?;
    let has = object.len_bytes();
    let wanted = len_bytes.unwrap_or(present);
    let longest = if len_bytes.is_some() { has.max(present) } else { has };
    if wanted < longest {
        let dirty = match object.stat().dirty_bytes {
            0 => String::new(),
            dirty => format!(", and up to {} of dirty pages with it", human_bytes(dirty)),
        };
        return Err(format!(
            "export \"{name}\" would become shorter: {longest} bytes -> {wanted} bytes; all data past the new \
             end is lost{dirty}; --shrink allows it"
        ));
    }
    // Another program may cut the file between this check and the change. Dirty pages are written
    // back first, so that the change drops none.
    object.sync().map_err(|error| error.to_string())
}
