//! `octavo ctl events`: shows the server's last events, and with `--follow` later ones.

use std::io::BufReader;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use serde::Deserialize;

use super::connection::{self, Connection, ask};
use crate::control::events::Event;
use crate::control::protocol::{Body, Request, Verb};
use crate::error::Error;
use crate::{logger, output};

/// What is shown, and how.
#[derive(Args)]
pub struct Events {
    /// Go on with later events, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Only events of this partition
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,
    /// Print each event as a JSON object on a line
    #[arg(long)]
    json: bool,
}

impl Events {
    /// Asks, and prints the answer.
    pub fn ask(&self, path: &Path) -> Result<(), Error> {
        let request = Request { follow: self.follow, ..Request::new(Verb::Events) };
        // No number is known yet: what the server has forgotten was not missed.
        let mut seen = None;
        if !self.follow {
            let mut answer = ask(path, &request)?;
            let events = Vec::deserialize(answer["events"].take()).map_err(connection::unreadable)?;
            return output::text(&self.lines(&events, &mut seen));
        }
        let connection = Connection::open(path)?;
        connection.send(&request)?;
        let mut reader = BufReader::new(&connection.stream);
        loop {
            match connection.reply(&mut reader)? {
                Body::Events(events) => output::text(&self.lines(&events, &mut seen))?,
                Body::Error(fault) => return Err(Error::failed(fault.message)),
                Body::Ok(_) => return Ok(()),
                Body::Progress(_) | Body::Recording(_) => {}
            }
        }
    }

    /// The events as lines. `seen` is the number of the last event of the lines before.
    fn lines(&self, events: &[Event], seen: &mut Option<u64>) -> String {
        let mut lines = String::new();
        for event in events {
            let missed = seen.map_or(0, |seen| event.number.saturating_sub(seen + 1));
            if missed > 0 && !self.json {
                lines += &format!("({missed} events were missed)\n");
            }
            *seen = Some(event.number);
            if self.partition.is_some() && event.partition != self.partition {
                continue;
            }
            lines += &match self.json {
                true => serde_json::to_string(event).expect("an event has only texts and numbers"),
                false => line(event),
            };
            lines.push('\n');
        }
        lines
    }
}

/// An event as a line for people, without the newline.
fn line(event: &Event) -> String {
    // No server sends a time that the clock's type cannot hold; a broken answer may.
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(event.time_ms.min(MS_MAX))).unwrap_or(UNIX_EPOCH);
    let mut line = format!("{}  {:<5}  {:<15}  ", logger::timestamp(at), event.level, event.kind);
    logger::escape(&mut line, &event.text);
    line
}

/// The end of the year 9999, the last that is shown.
const MS_MAX: u64 = 253_402_300_799_999;

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64, partition: Option<&str>, text: &str) -> Event {
        let (kind, level, partition) = ("moved".into(), "info".into(), partition.map(str::to_owned));
        Event {
            number,
            time_ms: 1_709_210_096_023,
            kind,
            level,
            partition,
            text: text.into(),
            ..Event::default()
        }
    }

    #[test]
    fn lines_have_the_time_the_kind_and_what_was_missed() {
        let mut events = Events { follow: true, partition: None, json: false };
        let (mut seen, told) = (None, [event(7, Some("a"), "one\n"), event(10, Some("b"), "two")]);
        assert_eq!(
            events.lines(&told, &mut seen),
            "2024-02-29T12:34:56.023Z  info   moved            one\\n\n\
             (2 events were missed)\n\
             2024-02-29T12:34:56.023Z  info   moved            two\n"
        );
        assert_eq!(events.lines(&[event(11, None, "three")], &mut seen).lines().count(), 1);
        events.partition = Some("b".into());
        assert!(events.lines(&told, &mut None).ends_with("two\n"));
        assert_eq!(events.lines(&told[..1], &mut None), "");
        events.json = true;
        let json: Event = serde_json::from_str(&events.lines(&told, &mut None)).unwrap();
        assert_eq!(json, told[1]);
        let far = Event { time_ms: u64::MAX, ..event(1, None, "far") };
        assert!(line(&far).starts_with("9999-12-31T23:59:59.999Z"));
    }
}
