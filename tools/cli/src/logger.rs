//! Log lines on standard error: plain text, JSON, or with the level prefix of systemd's journal.
//!
//! Every record is one line and one `write`, so lines of different threads never mix. Control
//! characters are escaped: a name that comes from a client or a file cannot forge a line or move a
//! terminal's cursor. The journal reads the level from a prefix such as `<4>` (sd-daemon(3)) and
//! has time stamps of its own.
//!
//! A command writes its lines itself. A server queues them (`queue.rs`), because it must not stop
//! when its log is not read.

mod queue;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, ValueEnum};
use log::kv::{self, Key, VisitSource};
use log::{Level, LevelFilter, Log, Metadata, Record};
use serde_json::Value;
use time::OffsetDateTime;

use crate::error::Error;
use crate::suggest::{Word, one_of};
use queue::Queue;

/// How a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A line for people
    Plain,
    /// A JSON object
    Json,
}

/// What can be logged. Each level includes those before it.
pub const LEVELS: [Word<LevelFilter>; 4] = [
    ("error", LevelFilter::Error, "Failures"),
    ("warn", LevelFilter::Warn, "Also warnings"),
    ("info", LevelFilter::Info, "Also events"),
    ("debug", LevelFilter::Debug, "Also what each client does"),
];

/// What the command line or the configuration sets for the log; `None`: not set.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// How log lines are written: plain for people, json for programs [default: plain]
    #[arg(id = "log_format", long = "log-format", value_name = "FORMAT", value_enum)]
    pub format: Option<Format>,
    /// Log this level and those above it, in place of -v and -q [default: info]
    #[arg(id = "log_level", long = "log-level", value_name = "LEVEL", value_parser = one_of(&LEVELS))]
    pub level: Option<LevelFilter>,
    /// Begin plain lines with the time [default: true, unless standard error is the journal]
    #[arg(id = "log_timestamps", long = "log-timestamps", value_name = "true|false")]
    pub timestamps: Option<bool>,
}

/// How records are written.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    level: LevelFilter,
    format: Format,
    /// Whether plain lines begin with the time.
    timestamps: bool,
    /// Standard error is the journal.
    journal: bool,
    /// Whether -v or -q was given.
    told: bool,
}

static LOGGER: Logger = Logger(RwLock::new(Settings::new(0, false, false)));

struct Logger(RwLock<Settings>);

/// Gets each record, whatever the level of the log is, down to [`LISTENED`].
type Listener = Box<dyn Fn(&Record<'_>) + Send + Sync>;

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// The lines of a server.
static QUEUE: OnceLock<&'static Queue> = OnceLock::new();

/// How long after its last dropped line a log counts as incomplete.
const RECENT: Duration = Duration::from_secs(60);

/// How long a line may wait for its reader before the log counts as stuck.
const STUCK: Duration = Duration::from_secs(5);

/// The least level that the listener gets.
const LISTENED: LevelFilter = LevelFilter::Info;

impl Settings {
    /// Plain lines: warnings and events by default, more with `-v`, only warnings with `-q`.
    pub const fn new(verbose: u8, quiet: bool, journal: bool) -> Settings {
        let level = match (quiet, verbose) {
            (true, _) => LevelFilter::Warn,
            (false, 0) => LevelFilter::Info,
            (false, 1) => LevelFilter::Debug,
            (false, _) => LevelFilter::Trace,
        };
        Settings { level, format: Format::Plain, timestamps: false, journal, told: quiet || verbose > 0 }
    }

    /// The settings of a server. Options of the command line take precedence over `-v` and `-q`,
    /// and these over the configuration.
    pub fn of_server(self, command_line: &Wishes, config: &Wishes) -> Settings {
        let level = command_line.level.or(config.level.filter(|_| !self.told));
        Settings {
            level: level.unwrap_or(self.level),
            format: command_line.format.or(config.format).unwrap_or(self.format),
            timestamps: command_line.timestamps.or(config.timestamps).unwrap_or(!self.journal),
            ..self
        }
    }

    /// A record as a line, with its newline.
    fn line(&self, now: SystemTime, record: &Record<'_>, label: &str) -> String {
        let (level, target, message) = (record.level(), record.target(), record.args().to_string());
        let mut line = String::new();
        if self.journal {
            line += match level {
                Level::Error => "<3>",
                Level::Warn => "<4>",
                Level::Info => "<6>",
                Level::Debug | Level::Trace => "<7>",
            };
        }
        match self.format {
            Format::Plain => {
                if self.timestamps {
                    line += &timestamp(now);
                    line.push(' ');
                }
                line += label;
                escape(&mut line, &message);
            }
            Format::Json => {
                let level = level.as_str().to_ascii_lowercase();
                let thread = std::thread::current();
                let text = |text: &str| Value::from(text);
                // Writing to a string does not fail.
                let _ = write!(
                    line,
                    "{{\"time\":{},\"level\":{},\"target\":{},\"thread\":{},\"message\":{}",
                    text(&timestamp(now)),
                    text(&level),
                    text(target),
                    text(thread.name().unwrap_or_default()),
                    text(&message)
                );
                let _ = record.key_values().visit(&mut Fields(&mut line));
                line.push('}');
            }
        }
        line.push('\n');
        line
    }
}

/// Appends the fields of a record to a JSON object.
struct Fields<'l>(&'l mut String);

impl<'kvs> VisitSource<'kvs> for Fields<'_> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: kv::Value<'kvs>) -> Result<(), kv::Error> {
        let number = value.to_u64().map(Value::from);
        let value = number.unwrap_or_else(|| Value::from(value.to_string()));
        let _ = write!(self.0, ",{}:{value}", Value::from(key.as_str()));
        Ok(())
    }
}

/// Starts logging.
pub fn start(settings: Settings) {
    // Fails only when a logger was set already, and `main` calls this once.
    if log::set_logger(&LOGGER).is_ok() {
        change(settings);
    }
}

/// Changes the settings.
pub fn change(settings: Settings) {
    *LOGGER.0.write().unwrap_or_else(PoisonError::into_inner) = settings;
    set_max_level();
}

/// Sets who else gets the records. A second call does nothing.
pub fn listen(listener: impl Fn(&Record<'_>) + Send + Sync + 'static) {
    let _ = LISTENER.set(Box::new(listener));
    set_max_level();
}

fn set_max_level() {
    let listened = LISTENER.get().map_or(LevelFilter::Off, |_| LISTENED);
    log::set_max_level(LOGGER.settings().level.max(listened));
}

/// Queues all lines from now on, as a server must: a thread writes them. Call it once.
pub fn queue() -> Result<(), Error> {
    let queue: &'static Queue = Box::leak(Box::new(Queue::new(queue::BYTES_MAX)));
    let write = || queue.run(rustix::stdio::stderr(), missing);
    let started = std::thread::Builder::new().name("log".into()).spawn(write);
    started.map_err(|error| Error::failed(format!("cannot start a thread: {error}")))?;
    // Only now: without the thread, nobody would write the lines.
    let _ = QUEUE.set(queue);
    Ok(())
}

/// Waits for a short time until the queued lines are written, at the end of the process.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush();
    }
}

/// How many lines were dropped since the start.
pub fn dropped_count() -> u64 {
    QUEUE.get().map_or(0, |queue| queue.loss().dropped_count)
}

/// Says that the log is incomplete or that nobody reads it; `None` if neither is so.
pub fn trouble(now: Instant) -> Option<String> {
    let loss = QUEUE.get()?.loss();
    let age = |then: Option<Instant>| then.map(|then| now.saturating_duration_since(then));
    let stuck = age(loss.writing_since).filter(|age| *age >= STUCK);
    let recent = age(loss.dropped_at).filter(|age| *age <= RECENT);
    let dropped = format!("{} lines were dropped since the start", loss.dropped_count);
    match (stuck, recent) {
        (Some(age), _) => Some(format!("log: nobody has read it for {} s; {dropped}", age.as_secs())),
        (None, Some(age)) => Some(format!("log: {dropped}, the last one {} s ago", age.as_secs())),
        (None, None) => None,
    }
}

/// The line in place of lines that were dropped.
fn missing(count: u64) -> String {
    let args = format_args!("{count} log lines are missing here: standard error was not read or was full");
    // A macro of `log` would queue the line behind others.
    let record = Record::builder().level(Level::Warn).target(module_path!()).args(args).build();
    LOGGER.settings().line(SystemTime::now(), &record, "octavo: warning: ")
}

/// Logs panics, as records if the log is JSON.
pub fn take_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        match (LOGGER.settings().format, QUEUE.get()) {
            (Format::Json, _) => log::error!("{panic}"),
            (Format::Plain, None) => usual(panic),
            (Format::Plain, Some(queue)) => {
                let thread = std::thread::current();
                let mut text = format!("\nthread '{}' {panic}\n", thread.name().unwrap_or("<unnamed>"));
                let backtrace = Backtrace::capture();
                if backtrace.status() == BacktraceStatus::Captured {
                    text += &format!("stack backtrace:\n{backtrace}");
                }
                queue.push(text);
            }
        }
        // The process may end now.
        flush();
    }));
}

/// Logs why the program fails, whatever the level is.
pub fn failure(error: &Error) {
    let settings = match error {
        // As compilers do: editors look for the place at the beginning of the line.
        Error::Config(_) => Settings { timestamps: false, ..LOGGER.settings() },
        _ => LOGGER.settings(),
    };
    for line in error.lines() {
        let args = format_args!("{line}");
        let record = Record::builder().level(Level::Error).target(module_path!()).args(args).build();
        LOGGER.write(settings.line(SystemTime::now(), &record, ""));
    }
}

impl Logger {
    fn settings(&self) -> Settings {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line, or queues it. A failure is ignored: there is nowhere to report it.
    fn write(&self, line: String) {
        match QUEUE.get() {
            Some(queue) => queue.push(line),
            None => _ = std::io::stderr().lock().write_all(line.as_bytes()),
        }
    }
}

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // The FUSE library logs details that are of use only to its authors.
        if record.target().starts_with("fuser") && record.level() > Level::Error {
            return;
        }
        if let Some(listen) = LISTENER.get()
            && record.level() <= LISTENED
        {
            listen(record);
        }
        let settings = self.settings();
        if record.level() > settings.level {
            return;
        }
        let label = match record.level() {
            Level::Error => "octavo: error: ",
            Level::Warn => "octavo: warning: ",
            Level::Info => "octavo: ",
            Level::Debug => "octavo: debug: ",
            Level::Trace => "octavo: trace: ",
        };
        self.write(settings.line(SystemTime::now(), record, label));
    }

    fn flush(&self) {
        flush();
    }
}

/// RFC 3339, UTC, with milliseconds.
pub fn timestamp(now: SystemTime) -> String {
    let now = OffsetDateTime::from(now);
    let (hour, minute, second, millisecond) = now.to_hms_milli();
    format!("{}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z", now.date())
}

/// Appends a text with its control characters written as in Rust: `\n`, `\u{1b}`.
pub fn escape(line: &mut String, text: &str) {
    for character in text.chars() {
        match character.is_control() {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    /// A leap day, and 23 ms.
    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(1_709_210_096_023)
    }

    fn line(settings: Settings, level: Level, message: &str) -> String {
        let args = format_args!("{message}");
        let record = Record::builder().level(level).target("octavo::serve").args(args).build();
        settings.line(now(), &record, "octavo: ")
    }

    #[test]
    fn a_plain_line_has_the_time_and_escapes_control_characters() {
        let server = Settings::new(0, false, false).of_server(&Wishes::default(), &Wishes::default());
        assert_eq!(
            line(server, Level::Warn, "a\r\n<3>b\u{1b}[31m\u{9b}\t\"\u{e9}\""),
            "2024-02-29T12:34:56.023Z octavo: a\\r\\n<3>b\\u{1b}[31m\\u{9b}\\t\"\u{e9}\"\n"
        );
        assert_eq!(line(Settings::new(0, false, false), Level::Warn, "a"), "octavo: a\n");
    }

    #[test]
    fn journal_lines_have_a_level_prefix_and_no_time_stamp() {
        let journal = Settings::new(0, false, true);
        let server = journal.of_server(&Wishes::default(), &Wishes::default());
        for (level, expected) in [
            (Level::Error, "<3>octavo: a\n"),
            (Level::Warn, "<4>octavo: a\n"),
            (Level::Info, "<6>octavo: a\n"),
            (Level::Debug, "<7>octavo: a\n"),
        ] {
            assert_eq!(line(server, level, "a"), expected);
        }
        let wishes = Wishes { timestamps: Some(true), ..Wishes::default() };
        let asked = journal.of_server(&Wishes::default(), &wishes);
        assert_eq!(line(asked, Level::Info, "a"), "<6>2024-02-29T12:34:56.023Z octavo: a\n");
    }

    #[test]
    fn a_json_line_is_one_object_whatever_the_message_is() {
        let wishes = Wishes { format: Some(Format::Json), ..Wishes::default() };
        let json = Settings::new(0, false, false).of_server(&wishes, &Wishes::default());
        let message = "a\r\n\"b\" \\ \u{0}\u{1b}[31m \u{2028} \u{fffd}";
        let line = line(json, Level::Warn, message);
        assert_eq!(line.lines().count(), 1, "{line}");
        let object: Value = serde_json::from_str(&line).unwrap();
        let expected = serde_json::json!({
            "time": "2024-02-29T12:34:56.023Z", "level": "warn", "target": "octavo::serve",
            "thread": std::thread::current().name(), "message": message,
        });
        assert_eq!(object, expected);
    }

    #[test]
    fn the_fields_of_a_record_are_keys_of_its_json_object() {
        let wishes = Wishes { format: Some(Format::Json), ..Wishes::default() };
        let json = Settings::new(0, false, false).of_server(&wishes, &Wishes::default());
        let fields: &[(&str, kv::Value<'_>)] =
            &[("export", kv::Value::from("a\"\n")), ("queue", kv::Value::from(3_u64))];
        let record = Record::builder().level(Level::Warn).key_values(&fields).build();
        let object: Value = serde_json::from_str(&json.line(now(), &record, "")).unwrap();
        assert_eq!((&object["export"], &object["queue"]), (&"a\"\n".into(), &3.into()), "{object}");
        let plain = Settings { format: Format::Plain, ..json };
        assert!(!plain.line(now(), &record, "").contains("export"));
    }

    #[test]
    fn the_command_line_overrides_v_and_q_which_override_the_configuration() {
        let wish = |level| Wishes { level: Some(level), ..Wishes::default() };
        let none = Wishes::default();
        for (verbose, quiet, command_line, config, expected) in [
            (0, false, none, none, LevelFilter::Info),
            (0, false, none, wish(LevelFilter::Error), LevelFilter::Error),
            (1, false, none, wish(LevelFilter::Error), LevelFilter::Debug),
            (0, true, none, wish(LevelFilter::Debug), LevelFilter::Warn),
            (2, false, wish(LevelFilter::Warn), wish(LevelFilter::Debug), LevelFilter::Warn),
        ] {
            let settings = Settings::new(verbose, quiet, false).of_server(&command_line, &config);
            assert_eq!(settings.level, expected);
        }
    }
}
