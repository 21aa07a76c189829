//! Reads one TOML table key by key.
//!
//! A [`Section`] hands out values by the type that the caller wants, remembers which keys it was
//! asked for, and turns everything else into a [`Problem`]: a wrong type, a value that does not
//! parse, a key nobody knows. It never stops at the first problem.

use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::source::{Place, Placed, Problem};
use crate::{suggest, units};

/// A table of the file and the keys it may have.
pub struct Section<'t, 's> {
    key: &'static str,
    table: &'t DeTable<'s>,
    span: Range<usize>,
    asked: Vec<&'static str>,
    problems: &'t mut Vec<Problem>,
}

impl<'t, 's> Section<'t, 's> {
    /// The table `table` that stands at `span` under `key` (empty for the whole file).
    pub fn new(
        key: &'static str,
        table: &'t DeTable<'s>,
        span: Range<usize>,
        problems: &'t mut Vec<Problem>,
    ) -> Section<'t, 's> {
        Section { key, table, span, asked: Vec::new(), problems }
    }

    /// The section as a place, for what is missing from it.
    pub fn place(&self) -> Place {
        Place::new(self.key, self.span.clone())
    }

    /// A string.
    pub fn string(&mut self, name: &'static str) -> Option<Placed<String>> {
        self.value(name, "a string", |value| match value {
            DeValue::String(text) => Some(Ok(text.to_string())),
            _ => None,
        })
    }

    /// `true` or `false`.
    pub fn flag(&mut self, name: &'static str) -> Option<Placed<bool>> {
        self.value(name, "true or false", |value| match value {
            DeValue::Boolean(flag) => Some(Ok(*flag)),
            _ => None,
        })
    }

    /// A number between `least` and `most`.
    pub fn count(&mut self, name: &'static str, least: u64, most: u64) -> Option<Placed<u64>> {
        self.value(name, "a number", |value| match value {
            DeValue::Integer(_) => Some(
                integer(value)
                    .filter(|count| (least..=most).contains(count))
                    .ok_or_else(|| format!("a number from {least} to {most} is expected")),
            ),
            _ => None,
        })
    }

    /// A size in bytes.
    pub fn size(&mut self, name: &'static str) -> Option<Placed<u64>> {
        self.value(name, units::SIZE_SHAPE, |value| match value {
            DeValue::String(text) => Some(units::size_bytes(text)),
            DeValue::Integer(_) => {
                Some(integer(value).ok_or_else(|| format!("{} is expected", units::SIZE_SHAPE)))
            }
            _ => None,
        })
    }

    /// A duration, of some length.
    pub fn duration(&mut self, name: &'static str) -> Option<Placed<Duration>> {
        self.value(name, units::DURATION_SHAPE, |value| match value {
            DeValue::String(text) => {
                Some(units::duration(text).and_then(|duration| match duration.is_zero() {
                    true => Err("no time at all is too short; 1ms is the least".into()),
                    false => Ok(duration),
                }))
            }
            _ => None,
        })
    }

    /// One of a list of words.
    pub fn word<T: Copy>(&mut self, name: &'static str, words: &[(&'static str, T)]) -> Option<Placed<T>> {
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let shape = format!("one of {}", names.join(", "));
        self.value(name, &shape, |value| match value {
            DeValue::String(text) => {
                Some(
                    words.iter().find(|(word, _)| word == text).map(|(_, meant)| *meant).ok_or_else(|| {
                        format!("no {name} is called \"{text}\"; {}", suggest::of(text, &names))
                    }),
                )
            }
            _ => None,
        })
    }

    /// A text that is parsed.
    pub fn parsed<T: FromStr<Err = String>>(&mut self, name: &'static str) -> Option<Placed<T>> {
        self.value(name, "a string", |value| match value {
            DeValue::String(text) => Some(text.parse()),
            _ => None,
        })
    }

    /// One text or an array of them, each parsed; `shape` says what one looks like, for what is no
    /// text.
    pub fn parsed_list<T>(&mut self, name: &'static str, shape: &str) -> Vec<Placed<T>>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        let Some((value, place)) = self.find(name) else { return Vec::new() };
        if matches!(value.get_ref(), DeValue::Array(array) if array.is_empty()) {
            self.problems.push(place.problem(format!("this is an empty array; {shape} is expected")));
        }
        let texts: Vec<&Spanned<DeValue<'_>>> = match value.get_ref() {
            DeValue::Array(array) => array.iter().collect(),
            _ => vec![value],
        };
        let mut list = Vec::new();
        for text in texts {
            let place = Place::new(place.key.clone(), text.span());
            match text.get_ref() {
                DeValue::String(written) => match written.parse::<T>() {
                    Ok(value) => list.push(Placed { value, place }),
                    Err(error) => {
                        self.problems.push(place.problem(error.to_string()));
                    }
                },
                other => self.problems.push(wrong_type(&place, shape, other)),
            }
        }
        list
    }

    /// A table of its own; the closure reads it.
    pub fn table(&mut self, name: &'static str, read: impl FnOnce(Section<'_, 's>)) {
        let Some((value, place)) = self.find(name) else { return };
        match value.get_ref() {
            DeValue::Table(table) => read(Section::new(name, table, value.span(), self.problems)),
            other => self.problems.push(wrong_type(&place, &format!("a table, [{name}],"), other)),
        }
    }

    /// An array of tables; the closure reads each.
    pub fn tables(&mut self, name: &'static str, mut read: impl FnMut(Section<'_, 's>)) {
        let Some((value, place)) = self.find(name) else { return };
        let shape = format!("an array of tables, [[{name}]],");
        match value.get_ref() {
            DeValue::Array(array) => {
                for item in array.iter() {
                    match item.get_ref() {
                        DeValue::Table(table) => {
                            read(Section::new(name, table, item.span(), self.problems));
                        }
                        other => {
                            let place = Place::new(name, item.span());
                            self.problems.push(wrong_type(&place, &shape, other));
                        }
                    }
                }
            }
            other => self.problems.push(wrong_type(&place, &shape, other)),
        }
    }

    /// Complains that a key is missing unless it was found.
    pub fn required<T>(
        &mut self,
        found: Option<Placed<T>>,
        name: &'static str,
        example: &str,
    ) -> Option<Placed<T>> {
        if found.is_none() && self.table.get(name).is_none() {
            let place = Place::new(self.dotted(name), self.span.clone());
            self.problems.push(place.problem(format!("missing; for example {example}")));
        }
        found
    }

    /// Adds a problem of the caller's own.
    pub fn complain(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Complains about every key that nobody asked for.
    pub fn finish(self) {
        for (key, _) in self.table.iter() {
            let name: &str = key.get_ref();
            if !self.asked.contains(&name) {
                let place = Place::new(self.dotted(name), key.span());
                let message = format!("no such key; {}", suggest::of(name, &self.asked));
                self.problems.push(place.problem(message));
            }
        }
    }

    fn value<T>(
        &mut self,
        name: &'static str,
        shape: &str,
        read: impl FnOnce(&DeValue<'_>) -> Option<Result<T, String>>,
    ) -> Option<Placed<T>> {
        let (value, place) = self.find(name)?;
        match read(value.get_ref()) {
            Some(Ok(value)) => return Some(Placed { value, place }),
            Some(Err(message)) => self.problems.push(place.problem(message)),
            None => self.problems.push(wrong_type(&place, shape, value.get_ref())),
        }
        None
    }

    fn find(&mut self, name: &'static str) -> Option<(&'t Spanned<DeValue<'s>>, Place)> {
        self.asked.push(name);
        let table = self.table;
        let value = table.get(name)?;
        Some((value, Place::new(self.dotted(name), value.span())))
    }

    fn dotted(&self, name: &str) -> String {
        if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) }
    }
}

fn integer(value: &DeValue<'_>) -> Option<u64> {
    let DeValue::Integer(number) = value else { return None };
    u64::from_str_radix(number.as_str(), number.radix()).ok().filter(|n| *n <= i64::MAX as u64)
}

fn wrong_type(place: &Place, shape: &str, found: &DeValue<'_>) -> Problem {
    let found = match found {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    };
    place.problem(format!("this is {found}; {shape} is expected"))
}
