//! The fields of log lines, which a log of JSON objects has as keys.

use crate::driver::Rig;
use crate::vmm::{Guest, SIZE};
use log::kv::{Error, Key, Value, VisitSource};
use octavo_block::VhostSettings;
use std::sync::{Mutex, PoisonError};

/// The lines of all tests in this process: the message, then the fields.
struct Lines(Mutex<Vec<String>>);

static LINES: Lines = Lines(Mutex::new(Vec::new()));

struct Fields<'l>(&'l mut String);

impl<'kvs> VisitSource<'kvs> for Fields<'_> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
        *self.0 += &format!(" {key}={value}");
        Ok(())
    }
}

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let mut line = record.args().to_string();
        record.key_values().visit(&mut Fields(&mut line)).unwrap();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn flush(&self) {}
}

#[test]
fn a_line_about_a_ring_has_its_export_and_its_queue() {
    log::set_logger(&LINES).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let rig = Rig::new(16 << 20, VhostSettings::default());
    let mut guest = Guest::new();
    let _vmm = guest.connect(&rig.socket);
    guest.offer(&[SIZE]);
    guest.wait_until_broken();
    let lines = LINES.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // The fuzzed devices of this process belong to no export.
    let is_of_export = |line: &&String| line.starts_with("vhost-user: export \"disk\": ");
    let mut lines = lines.iter().filter(is_of_export);
    let line = lines.find(|line| line.contains("the device is broken")).unwrap();
    assert!(line.contains(": queue 0: "), "{line}");
    assert!(line.ends_with(" protocol=vhost-user export=disk queue=0"), "{line}");
}
