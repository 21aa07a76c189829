//! [`Journal`]: the warnings of a server about its clients, at a bounded rate. A hostile client can
//! cause any number of errors, but all clients together cause only as many warnings as
//! [`LineRate`] admits.

use log::Level;
use log::kv::{self, Key, Source, Value, VisitSource};
use octavo::LineRate;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Writes warnings about one client. All journals of a server share one rate.
///
/// A line names the protocol and the client. It also has them as fields, for a log of JSON objects:
/// `protocol`, and `export` and `queue` where they are known.
#[derive(Clone, Default)]
pub struct Journal {
    who: String,
    fields: Fields,
    rate: Arc<LineRate>,
}

#[derive(Clone, Default)]
struct Fields {
    protocol: Option<&'static str>,
    export: Option<String>,
    queue: Option<u64>,
}

impl Source for Fields {
    fn visit<'kvs>(&'kvs self, visitor: &mut dyn VisitSource<'kvs>) -> Result<(), kv::Error> {
        if let Some(protocol) = self.protocol {
            visitor.visit_pair(Key::from_str("protocol"), Value::from(protocol))?;
        }
        if let Some(export) = &self.export {
            visitor.visit_pair(Key::from_str("export"), Value::from(&**export))?;
        }
        if let Some(queue) = self.queue {
            visitor.visit_pair(Key::from_str("queue"), Value::from(queue))?;
        }
        Ok(())
    }
}

impl Journal {
    /// Returns the journal of another client of the same server.
    pub fn about(&self, who: String) -> Journal {
        Journal { who, ..self.clone() }
    }

    /// Returns this journal for clients of a protocol.
    pub fn of(&self, protocol: &'static str) -> Journal {
        Journal { fields: Fields { protocol: Some(protocol), ..self.fields.clone() }, ..self.clone() }
    }

    /// Returns this journal for a client of an export. The caller also puts the export's name into
    /// the client's name ([`about`](Journal::about)).
    pub fn of_export(&self, name: &str) -> Journal {
        Journal { fields: Fields { export: Some(name.to_owned()), ..self.fields.clone() }, ..self.clone() }
    }

    /// Returns this journal for a queue of the client.
    pub fn of_queue(&self, index: usize) -> Journal {
        let fields = Fields { queue: Some(index as u64), ..self.fields.clone() };
        Journal { who: format!("{}: queue {index}", self.who), fields, ..self.clone() }
    }

    /// Returns the client's name in the log.
    pub fn who(&self) -> &str {
        &self.who
    }

    /// Writes a warning, unless the window is full.
    pub fn warn(&self, what: fmt::Arguments<'_>) {
        if let Some(suppressed) = self.rate.admit(Instant::now()) {
            if suppressed > 0 {
                log::warn!("{suppressed} warnings about clients were suppressed");
            }
            self.write(Level::Warn, what);
        }
    }

    /// Writes a line that is no warning, at the same rate.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        if self.rate.admit(Instant::now()).is_some() {
            self.write(Level::Info, what);
        }
    }

    /// Writes a line of the debug level, without a limit on the rate.
    pub fn debug(&self, what: fmt::Arguments<'_>) {
        self.write(Level::Debug, what);
    }

    fn write(&self, level: Level, what: fmt::Arguments<'_>) {
        if level > log::max_level() {
            return;
        }
        let protocol = self.fields.protocol.map(|protocol| format!("{protocol}: ")).unwrap_or_default();
        log::logger().log(
            &log::Record::builder()
                .level(level)
                .target(module_path!())
                .module_path_static(Some(module_path!()))
                .key_values(&self.fields)
                .args(format_args!("{protocol}{}: {what}", self.who))
                .build(),
        );
    }
}
