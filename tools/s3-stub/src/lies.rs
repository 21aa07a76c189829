//! [`Lie`]: how an answer is wrong, broken or late; [`Lies`]: which answers are.

use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use octavo_random::Random;

use crate::contents::Contents;
use crate::request::Operation;

/// What is wrong with an answer. Lies about bodies, ranges and versions concern GETs of objects;
/// other requests are answered truthfully then. Half of a body is cut from bodies of one byte too:
/// nothing is left of them.
///
/// No lie sends other bytes under the right length, range and entity tag: no client of S3 could
/// detect it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The header promises the whole body; the connection is closed after half of it.
    ClosedEarly,
    /// Half of the body, and a length to match. `Content-Range` claims all of it.
    Short,
    /// The body has the range and as many bytes again (at most 1,000), and a length to match.
    /// `Content-Range` claims the range that was asked for.
    Long,
    /// The bytes of a neighbouring range of equal length, which `Content-Range` names.
    OtherRange,
    /// The range is ignored: status 200 and the whole object.
    WholeObject,
    /// `If-Match` is ignored: the present version, with its entity tag.
    IfMatchIgnored,
    /// The version before the present one, with its own entity tag and size, whatever the
    /// conditions. The present one if there is no other.
    OldVersion,
    /// The right bytes under an entity tag that the object never had. Also for HEADs.
    OtherTag,
    /// An error, such as 500, or 503 with `Retry-After`. For all requests.
    Status {
        /// The status.
        code: u16,
        /// The seconds in `Retry-After`, if any.
        retry_after_s: Option<u32>,
    },
    /// The connection is reset before the first byte of an answer. For all requests.
    ResetBefore,
    /// The connection is reset after half of the body.
    ResetInside,
    /// Nothing is sent for a time; then the right answer. For all requests.
    StallBefore(Duration),
    /// Half of the body is sent, then nothing for a time, then the rest.
    StallInside(Duration),
    /// This status and body. For all requests.
    Answer(u16, String),
    /// The right answer with these headers replaced, or removed. For HEADs and GETs.
    Headers(Vec<(&'static str, Option<String>)>),
    /// A body without end, under this status. For all requests.
    Endless(u16),
    /// Status 302 and this location; one that begins with a slash is at this server. For all
    /// requests.
    Redirect(String),
    /// A listing of this number of generated keys, a thousand in a page. For listings.
    Keys(u64),
    /// A page of a listing that is followed by itself. For listings.
    SamePage,
}

impl Lie {
    /// Returns the name under which [`Counts`](crate::Counts) has the lie.
    pub fn name(&self) -> &'static str {
        match self {
            Lie::ClosedEarly => "closed_early",
            Lie::Short => "short",
            Lie::Long => "long",
            Lie::OtherRange => "other_range",
            Lie::WholeObject => "whole_object",
            Lie::IfMatchIgnored => "if_match_ignored",
            Lie::OldVersion => "old_version",
            Lie::OtherTag => "other_tag",
            Lie::Status { .. } => "status",
            Lie::ResetBefore => "reset_before",
            Lie::ResetInside => "reset_inside",
            Lie::StallBefore(_) => "stall_before",
            Lie::StallInside(_) => "stall_inside",
            Lie::Answer(..) => "answer",
            Lie::Headers(_) => "headers",
            Lie::Endless(_) => "endless",
            Lie::Redirect(_) => "redirect",
            Lie::Keys(_) => "keys",
            Lie::SamePage => "same_page",
        }
    }

    /// Whether the lie is possible in an answer to `operation`.
    pub(crate) fn concerns(&self, operation: Operation) -> bool {
        match self {
            Lie::Status { .. } | Lie::ResetBefore | Lie::StallBefore(_) => true,
            Lie::Answer(..) | Lie::Endless(_) | Lie::Redirect(_) => true,
            Lie::Keys(_) | Lie::SamePage => operation == Operation::List,
            Lie::OtherTag | Lie::Headers(_) => matches!(operation, Operation::Get | Operation::Head),
            _ => operation == Operation::Get,
        }
    }
}

/// A request, as a plan sees it.
#[derive(Debug)]
pub struct Asked<'a> {
    /// What is asked for.
    pub operation: Operation,
    /// Which request of this operation it is, from 1 since the start.
    pub number: u64,
    /// The object (`bucket/key`), or the bucket of a listing.
    pub path: &'a str,
    /// The range that a GET asks for, as far as it can be told without the object's size.
    pub range: Option<Range<u64>>,
    /// Whether the request has a condition on the object's version (`If-Match`).
    pub if_match: bool,
    /// The header `Authorization`, which nobody checks.
    pub authorization: Option<&'a str>,
    /// The objects. A plan may change them: the answer is then about the new ones.
    pub contents: &'a Contents,
}

type Plan = dyn Fn(&Asked<'_>) -> Option<Lie> + Send + Sync;

/// Which answers are wrong.
pub struct Lies(Option<Box<Plan>>);

impl fmt::Debug for Lies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lies").field(&self.0.as_ref().map(|_| "plan")).finish()
    }
}

impl Lies {
    /// Every answer is right.
    pub fn none() -> Lies {
        Lies(None)
    }

    /// `plan` decides for each request.
    pub fn with(plan: impl Fn(&Asked<'_>) -> Option<Lie> + Send + Sync + 'static) -> Lies {
        Lies(Some(Box::new(plan)))
    }

    /// Every answer to a GET of an object is wrong in the same way.
    pub fn always(lie: Lie) -> Lies {
        Lies::with(move |asked| (asked.operation == Operation::Get).then(|| lie.clone()))
    }

    /// The first `count` answers to GETs of objects are wrong in the same way.
    pub fn first(count: u64, lie: Lie) -> Lies {
        let left = Mutex::new(count);
        Lies::with(move |asked| {
            if asked.operation != Operation::Get {
                return None;
            }
            let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
            let lies = *left > 0;
            *left = left.saturating_sub(1);
            lies.then(|| lie.clone())
        })
    }

    /// Answers to HEADs and GETs of objects are wrong at random: each lie with its probability. The
    /// same seed and order of requests gives the same lies.
    ///
    /// # Panics
    /// If the probabilities add up to more than 1.
    pub fn random(seed: u64, lies: Vec<(Lie, f64)>) -> Lies {
        assert!(lies.iter().map(|(_, probability)| probability).sum::<f64>() <= 1.0 + 1e-9);
        let random = Mutex::new(Random::new(seed));
        Lies::with(move |asked| {
            if !matches!(asked.operation, Operation::Get | Operation::Head) {
                return None;
            }
            let mut draw = random.lock().unwrap_or_else(PoisonError::into_inner).unit();
            let drawn = lies.iter().find(|(_, probability)| {
                draw -= probability;
                draw < 0.0
            });
            drawn.map(|(lie, _)| lie.clone())
        })
    }

    /// Returns the lie that is planned for a request, if any. A plan may ask another one.
    pub fn tell(&self, asked: &Asked<'_>) -> Option<Lie> {
        let lie = self.0.as_ref().and_then(|plan| plan(asked));
        lie.filter(|lie| lie.concerns(asked.operation))
    }
}
