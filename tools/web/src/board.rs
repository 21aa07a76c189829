//! The latest news of each topic, for any number of readers.
//!
//! A reader that is slow finds only the latest news of a topic when it looks again: it loses
//! intervals, and the board keeps one text for each topic, however many readers there are.

use bytes::Bytes;

/// What news can be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Whether the server answers, and what it is.
    State,
    /// What happened in the last interval.
    Interval,
    /// Miss-ratio curves.
    Curves,
    /// The server's proposal of sizes.
    Plan,
    /// Exports, with their counters.
    Objects,
    /// How full sets are.
    Sets,
    /// Files of mounts.
    Files,
    /// The latest events of the server.
    Events,
}

impl Topic {
    /// All topics.
    pub const ALL: [Topic; 8] = [
        Topic::State,
        Topic::Interval,
        Topic::Curves,
        Topic::Plan,
        Topic::Objects,
        Topic::Sets,
        Topic::Files,
        Topic::Events,
    ];

    /// The name in feeds and recordings.
    pub const fn name(self) -> &'static str {
        match self {
            Topic::State => "state",
            Topic::Interval => "interval",
            Topic::Curves => "curves",
            Topic::Plan => "plan",
            Topic::Objects => "objects",
            Topic::Sets => "sets",
            Topic::Files => "files",
            Topic::Events => "events",
        }
    }
}

/// The latest news.
#[derive(Clone, Debug, Default)]
pub struct Board {
    /// The number of the last news.
    number: u64,
    /// Each topic's news with their number; the number is 0 while there are none.
    news: [(u64, Bytes); Topic::ALL.len()],
}

impl Board {
    /// Replaces the news of a topic by this JSON.
    pub fn post(&mut self, topic: Topic, json: &str) {
        self.number += 1;
        // JSON has no line feeds outside of strings, and writes those in strings as \n.
        let frame = format!("event: {}\ndata: {json}\n\n", topic.name());
        self.news[topic as usize] = (self.number, frame.into());
    }

    /// The news after number `seen` as server-sent events, and the number of the last.
    pub fn since(&self, seen: u64) -> (u64, Bytes) {
        let fresh: Vec<&Bytes> =
            self.news.iter().filter(|(number, _)| *number > seen).map(|(_, frame)| frame).collect();
        let frames = match fresh[..] {
            [only] => only.clone(),
            _ => fresh.iter().flat_map(|frame| frame.iter().copied()).collect(),
        };
        (self.number, frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_gets_the_latest_news_of_each_topic_once() {
        let mut board = Board::default();
        for number in 0..1000 {
            board.post(Topic::Interval, &number.to_string());
        }
        board.post(Topic::State, "{}");
        let (seen, frames) = board.since(0);
        assert_eq!(&frames[..], b"event: state\ndata: {}\n\nevent: interval\ndata: 999\n\n");
        assert_eq!(board.since(seen), (seen, Bytes::new()));
        board.post(Topic::Plan, "1");
        assert_eq!(&board.since(seen).1[..], b"event: plan\ndata: 1\n\n");
    }
}
