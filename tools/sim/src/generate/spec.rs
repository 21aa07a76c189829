//! Parses the text of a workload: `kind:name=value,name=value`.

use crate::generate::workload::{Part, Popular, Workload};
use crate::generate::zipf::Zipf;

/// The most pages of a workload, so that the sum over the parts of a mix fits into 64 bits.
const PAGES_MAX: u64 = 1 << 40;

/// The ranks that YCSB draws from, whatever the number of its records.
const RANKS: u64 = 10_000_000_000;

const REQUESTS: u64 = 10_000_000;
const SKEW: f64 = 0.99;
const SKEW_MAX: f64 = 10.0;
const WEIGHT_MAX: u64 = 1_000_000;
const SPEC_BYTES_MAX: usize = 16 << 10;

/// How deep mixes can be nested, the outermost included.
const DEPTH_MAX: usize = 4;

const KINDS: &str = "uniform, zipf, scans, loop, phases, drift, mix";

/// A parsed text.
pub struct Spec {
    /// The workload.
    pub workload: Workload,
    /// The number of accesses.
    pub requests: u64,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// Parses a text; the error is a sentence.
pub fn parse(text: &str) -> Result<Spec, String> {
    if text.len() > SPEC_BYTES_MAX {
        return Err(format!("a workload of more than {SPEC_BYTES_MAX} bytes of text"));
    }
    let mut values = Values::of(text)?;
    let requests = values.number("requests", Some(REQUESTS), 0..=i64::MAX as u64)?;
    let seed = values.number("seed", Some(1), 0..=u64::MAX)?;
    Ok(Spec { workload: workload(values, DEPTH_MAX)?, requests, seed })
}

fn workload(mut values: Values<'_>, depth: usize) -> Result<Workload, String> {
    let kind = values.kind;
    let made = match kind {
        "uniform" => Workload::Uniform { pages: values.pages()? },
        "zipf" => Workload::Zipf(values.popular()?),
        "scans" => {
            let hot = values.popular()?;
            let every = values.number("every", None, 1..=PAGES_MAX)?;
            let length = values.number("length", None, 1..=PAGES_MAX)?;
            let cold =
                values.number("cold", Some(hot.pages.saturating_mul(10).min(PAGES_MAX)), 1..=PAGES_MAX)?;
            Workload::Scans { hot, every, length, cold, requests: 0, scanned: 0 }
        }
        "loop" => Workload::Loop { pages: values.pages()?, next: 0 },
        "phases" => {
            let hot = values.popular()?;
            Workload::Phases { hot, every: values.number("every", None, 1..=u64::MAX)?, requests: 0 }
        }
        "drift" => {
            let pages = values.pages()?;
            let zipf = Zipf::new(pages, values.skew()?);
            Workload::Drift { zipf, pages, every: values.number("every", None, 1..=u64::MAX)?, requests: 0 }
        }
        "mix" => mix(&mut values, depth)?,
        _ => return Err(format!("\"{kind}\" is not a kind of workload; known: {KINDS}")),
    };
    values.end()?;
    Ok(made)
}

fn mix(values: &mut Values<'_>, depth: usize) -> Result<Workload, String> {
    if depth == 1 {
        return Err(format!("mix: more than {DEPTH_MAX} mixes inside each other"));
    }
    let (mut parts, mut weights, mut pages): (Vec<Part>, u64, u64) = (Vec::new(), 0, 0);
    let is_weight = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    for (name, value) in values.take_all(is_weight) {
        let weight = number("mix", name, name, 1..=WEIGHT_MAX)?;
        let inside = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
        let inside = inside.ok_or_else(|| format!("mix: {name}: a workload in brackets is expected"))?;
        let workload = workload(Values::of(inside)?, depth - 1)?;
        let first_page = pages;
        pages = pages.saturating_add(workload.pages());
        if pages > 2 * PAGES_MAX {
            return Err(format!("mix: more than {} pages in all", 2 * PAGES_MAX));
        }
        weights += weight;
        parts.push(Part { weight, first_page, workload });
    }
    if parts.is_empty() {
        return Err(
            "mix: the parts are missing; expected such as mix:70=[zipf:pages=1000],30=[loop:pages=500]"
                .into(),
        );
    }
    Ok(Workload::Mix { parts, weights })
}

/// The names and values of a text that were not taken yet.
struct Values<'t> {
    kind: &'t str,
    left: Vec<(&'t str, &'t str)>,
    /// The names that the workload takes, for the message about any other name.
    known: Vec<&'static str>,
}

impl<'t> Values<'t> {
    fn of(text: &'t str) -> Result<Values<'t>, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut values = Values { kind, left: Vec::new(), known: Vec::new() };
        for pair in pairs(rest).filter(|pair| !pair.is_empty()) {
            let wrong = || format!("{kind}: \"{pair}\" has no value; \"name=value\" is expected");
            let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
            let is_weight = name.bytes().all(|byte| byte.is_ascii_digit());
            if !is_weight && values.left.iter().any(|(other, _)| *other == name) {
                return Err(format!("{kind}: {name} is given twice"));
            }
            values.left.push((name, value));
        }
        Ok(values)
    }

    fn take(&mut self, name: &'static str) -> Option<&'t str> {
        self.known.push(name);
        let at = self.left.iter().position(|(known, _)| *known == name)?;
        Some(self.left.remove(at).1)
    }

    fn take_all(&mut self, wanted: impl Fn(&str) -> bool) -> Vec<(&'t str, &'t str)> {
        let (taken, left) = self.left.iter().partition(|(name, _)| wanted(name));
        self.left = left;
        taken
    }

    fn number(
        &mut self,
        name: &'static str,
        default: Option<u64>,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, String> {
        match (self.take(name), default) {
            (Some(text), _) => number(self.kind, name, text, range),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(format!("{}: {name} is missing", self.kind)),
        }
    }

    fn pages(&mut self) -> Result<u64, String> {
        self.number("pages", None, 1..=PAGES_MAX)
    }

    fn skew(&mut self) -> Result<f64, String> {
        let Some(text) = self.take("skew") else { return Ok(SKEW) };
        let skew: f64 =
            text.parse().map_err(|_| format!("{}: skew: \"{text}\" is not a number", self.kind))?;
        if !(1e-6..=SKEW_MAX).contains(&skew) {
            return Err(format!("{}: skew: more than 0 and at most {SKEW_MAX} is expected", self.kind));
        }
        Ok(skew)
    }

    fn popular(&mut self) -> Result<Popular, String> {
        let pages = self.pages()?;
        let ranks = self.number("ranks", Some(RANKS), 1..=PAGES_MAX)?;
        Ok(Popular { zipf: Zipf::new(ranks, self.skew()?), pages })
    }

    /// Refuses names that were not taken.
    fn end(self) -> Result<(), String> {
        let Some((name, _)) = self.left.first() else { return Ok(()) };
        let known = self.known.join(", ");
        Err(format!("{}: unknown name {name}; known: {known}", self.kind))
    }
}

/// Splits a text at the commas outside of brackets.
fn pairs(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    text.split(move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

fn number(kind: &str, name: &str, text: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let digits: String = text.chars().filter(|letter| *letter != '_').collect();
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|number| is_number && range.contains(number));
    let (least, most) = (range.start(), range.end());
    number.ok_or_else(|| format!("{kind}: {name}: \"{text}\" is not a whole number from {least} to {most}"))
}
