//! Tables of requests whose columns the user names: `--columns time,op,offset,size`.
//!
//! A line is a request. Its fields are separated by white space, or by one character; in the second
//! case they may be quoted (RFC 4180). The meaning of a column is a [`Role`]; columns without one
//! are ignored. A request with an offset becomes pages as in `extent`. A key becomes a page number:
//! a whole number is the page number itself, other text is hashed to 64 bits. If the request has a
//! volume or a size, the first page is a hash of the key and the volume instead.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use csv::ByteRecord;
use octavo_table::Mixer;

use crate::trace::extent::{Extents, REQUEST_PAGES_MAX, Run, TIMES_MAX};
use crate::trace::fields::{moment, number, shown, whole};
use crate::trace::lines::Format;
use crate::trace::operations::is_access;

/// The meaning of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Nothing; the column is ignored.
    Ignored,
    /// The time of the request. It must be a number or a date, and is not used: requests keep their
    /// order.
    Time,
    /// The operation: a read, a write, or one that touches no data.
    Operation,
    /// The start of the request.
    Offset(Unit),
    /// The length of the request.
    Size(Unit),
    /// The volume of the request: a number or a name.
    Volume,
    /// The key of the object that is accessed, in place of an offset.
    Key,
    /// How often the request was made, one after the other.
    Count,
}

/// The unit of an offset or a size; [`Unit::Bytes`] holds the unit's length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes(u64),
    Pages,
}

/// The most columns of a table.
const COLUMNS_MAX: usize = 64;

/// The meaning of a table's columns.
///
/// ```
/// use octavo_sim::trace::Columns;
///
/// let by_place: Columns = "time,op,offset:sectors,size:sectors,volume".parse()?;
/// let by_name: Columns = "offset=Offset,size=Length:kib".parse()?;
/// assert!("offset,offset".parse::<Columns>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    roles: Vec<Role>,
    /// The names to look for in the table's header, if columns are found by name.
    names: Option<Vec<String>>,
    separator: Separator,
    header_lines: u64,
}

/// The separator of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Separator {
    /// One character of one byte.
    Byte(u8),
    /// One or more spaces or tabs.
    Space,
}

const SHAPE: &str = "write columns in their order, such as time,op,offset:sectors,size:bytes,volume, or by name, \
    such as offset=Offset,size=Size; known: time, op, offset, size, volume, key, count, and - for a column to ignore";

impl FromStr for Columns {
    type Err = String;

    fn from_str(text: &str) -> Result<Columns, String> {
        let wrong = |why: String| format!("{why}; {SHAPE}");
        let mut roles: Vec<Role> = Vec::new();
        let mut names = Vec::new();
        for item in text.split(',').map(str::trim) {
            let (word, rest) = item.split_once('=').map_or((item, None), |(word, rest)| (word, Some(rest)));
            let (word, name, unit) = match rest {
                None => {
                    let (word, unit) =
                        word.split_once(':').map_or((word, None), |(word, unit)| (word, Some(unit)));
                    (word, None, unit)
                }
                // A name may have colons: only the last one, before a known unit, begins the unit.
                Some(rest) => match rest.rsplit_once(':').filter(|(_, unit)| Unit::of(unit).is_some()) {
                    Some((name, unit)) => (word, Some(name), Some(unit)),
                    None => (word, Some(rest), None),
                },
            };
            let role = Role::of(word, unit).map_err(wrong)?;
            let same = |other: &Role| std::mem::discriminant(other) == std::mem::discriminant(&role);
            if role != Role::Ignored && roles.iter().any(same) {
                return Err(wrong(format!("{word} is given twice")));
            }
            roles.push(role);
            names.extend(name.map(str::to_owned));
        }
        if !names.is_empty() && names.len() != roles.len() {
            return Err(wrong("some columns have names and some do not".into()));
        }
        if roles.len() > COLUMNS_MAX {
            return Err(wrong(format!("more than {COLUMNS_MAX} columns")));
        }
        let has = |role: fn(&Role) -> bool| roles.iter().any(role);
        let (key, offset) = (has(|role| *role == Role::Key), has(|role| matches!(role, Role::Offset(_))));
        if key == offset {
            return Err(wrong("either an offset or a key is needed".into()));
        }
        let names = (!names.is_empty()).then_some(names);
        let header_lines = u64::from(names.is_some());
        Ok(Columns { roles, names, separator: Separator::Byte(b','), header_lines })
    }
}

impl Columns {
    /// Returns the columns with another separator than a comma.
    pub fn separated_by(self, separator: Separator) -> Columns {
        Columns { separator, ..self }
    }

    /// Returns the columns of a table whose first `header_lines` lines are not requests. Columns
    /// found by name need at least one such line; the last one has the names.
    pub fn below(self, header_lines: u64) -> Columns {
        Columns { header_lines: header_lines.max(u64::from(self.names.is_some())), ..self }
    }
}

impl FromStr for Separator {
    type Err = String;

    fn from_str(text: &str) -> Result<Separator, String> {
        match text {
            "comma" => Ok(Separator::Byte(b',')),
            "semicolon" => Ok(Separator::Byte(b';')),
            "tab" | "\\t" => Ok(Separator::Byte(b'\t')),
            "space" | " " => Ok(Separator::Space),
            _ => match text.as_bytes() {
                [byte] if byte.is_ascii() && !byte.is_ascii_alphanumeric() && !b"\"\n\r".contains(byte) => {
                    Ok(Separator::Byte(*byte))
                }
                _ => Err(format!(
                    "\"{text}\" is not a separator; known: comma, semicolon, tab, space, or one character such as |"
                )),
            },
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Ignored => "-",
            Role::Time => "time",
            Role::Operation => "op",
            Role::Offset(_) => "offset",
            Role::Size(_) => "size",
            Role::Volume => "volume",
            Role::Key => "key",
            Role::Count => "count",
        })
    }
}

impl Role {
    fn of(word: &str, unit: Option<&str>) -> Result<Role, String> {
        let amount = || match unit {
            None => Ok(Unit::Bytes(1)),
            Some(unit) => Unit::of(unit).ok_or_else(|| {
                let known = "bytes, sectors (of 512 bytes), kib, pages, or a number of bytes";
                format!("\"{unit}\" is not a unit of {word}; known: {known}")
            }),
        };
        match (word, unit) {
            ("offset", _) => Ok(Role::Offset(amount()?)),
            ("size", _) => Ok(Role::Size(amount()?)),
            ("time", None | Some("s" | "ms" | "us" | "ns")) => Ok(Role::Time),
            ("time", Some(_)) => Err("a time is in s, ms, us or ns".into()),
            ("" | "-" | "_", None) => Ok(Role::Ignored),
            ("op", None) => Ok(Role::Operation),
            ("volume" | "tenant", None) => Ok(Role::Volume),
            ("key" | "object", None) => Ok(Role::Key),
            ("count", None) => Ok(Role::Count),
            ("" | "-" | "_" | "op" | "volume" | "tenant" | "key" | "object" | "count", Some(_)) => {
                Err(format!("{word} has no unit"))
            }
            _ => Err(format!("there is no column \"{word}\"")),
        }
    }

    /// Whether each field of this column is a number, and so never begins with `#`.
    fn is_number(self) -> bool {
        matches!(self, Role::Time | Role::Offset(_) | Role::Size(_) | Role::Count)
    }
}

impl Unit {
    fn of(word: &str) -> Option<Unit> {
        Some(match word {
            "bytes" | "b" => Unit::Bytes(1),
            "sectors" => Unit::Bytes(512),
            "kib" => Unit::Bytes(1024),
            "pages" | "blocks" => Unit::Pages,
            _ => Unit::Bytes(word.parse().ok().filter(|bytes| (1..=1 << 30).contains(bytes))?),
        })
    }

    fn bytes(self, count: u64, page_bytes: u64) -> Result<u64, String> {
        let bytes = match self {
            Unit::Bytes(bytes) => bytes,
            Unit::Pages => page_bytes,
        };
        count.checked_mul(bytes).ok_or_else(|| format!("{count} lies past 2^64 bytes"))
    }
}

/// The reader of a table.
pub struct Table {
    columns: Columns,
    extents: Extents,
    mixer: Mixer,
    header_left: u64,
    /// The role of each field in a line, once the roles are known.
    places: Vec<Role>,
    fields: ByteRecord,
}

/// A request, as far as its line was read.
#[derive(Default)]
struct Request {
    volume: Option<u64>,
    offset: u64,
    size: Option<u64>,
    key: Option<u64>,
    times: Option<u64>,
    is_no_access: bool,
}

impl Table {
    /// Starts before the first line.
    pub fn new(columns: Columns, extents: Extents) -> Table {
        let places = if columns.names.is_none() { columns.roles.clone() } else { Vec::new() };
        let (header_left, mixer) = (columns.header_lines, Mixer::new(0));
        Table { header_left, columns, extents, mixer, places, fields: ByteRecord::new() }
    }

    /// Splits a line into its fields.
    fn split(&mut self, line: &[u8]) -> Result<(), String> {
        self.fields.clear();
        match self.columns.separator {
            Separator::Space => {
                let words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
                words.for_each(|word| self.fields.push_field(word));
            }
            Separator::Byte(separator) => {
                let mut reader = csv::ReaderBuilder::new();
                reader.has_headers(false).flexible(true).trim(csv::Trim::All).delimiter(separator);
                let mut reader = reader.buffer_capacity(line.len()).from_reader(line);
                reader.read_byte_record(&mut self.fields).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Finds the named columns in the table's header.
    fn find_names(&mut self) -> Result<(), String> {
        let Some(names) = &self.columns.names else { return Ok(()) };
        let header: Vec<&[u8]> = self.fields.iter().take(COLUMNS_MAX).collect();
        self.places = vec![Role::Ignored; header.len()];
        for (name, role) in names.iter().zip(&self.columns.roles) {
            let place = header.iter().position(|field| field.eq_ignore_ascii_case(name.as_bytes()));
            let place = place.ok_or_else(|| {
                let header: Vec<String> = header.iter().map(|field| shown(field)).collect();
                format!("no column is called \"{name}\"; the table has {}", header.join(", "))
            })?;
            self.places[place] = *role;
        }
        Ok(())
    }

    fn take(&mut self, role: Role, place: usize, request: &mut Request) -> Result<(), String> {
        let field = &self.fields[place];
        let bytes = |unit: Unit| unit.bytes(whole(field)?, self.extents.page_bytes());
        match role {
            Role::Ignored => {}
            Role::Time => moment(field)?,
            Role::Operation => request.is_no_access = !is_access(field)?,
            Role::Offset(unit) => request.offset = bytes(unit)?,
            Role::Size(unit) => request.size = Some(bytes(unit)?),
            Role::Count => {
                let times = whole(field)?;
                if times > TIMES_MAX {
                    return Err(format!("{times} requests; the most that a line may count is {TIMES_MAX}"));
                }
                request.times = Some(times);
            }
            Role::Volume | Role::Key if field.is_empty() => return Err("the field is empty".into()),
            Role::Volume => request.volume = Some(self.extents.volume(field)?),
            Role::Key => {
                // Only a number without leading zeros is a page: 007 is a name.
                let canonical = field == b"0" || field[0] != b'0';
                let plain = number(field).ok().filter(|_| canonical);
                request.key = Some(plain.unwrap_or_else(|| hash(&self.mixer, field)));
            }
        }
        Ok(())
    }

    fn run(&self, request: &Request) -> Result<Run, String> {
        let Request { volume, offset, size, .. } = *request;
        let Some(key) = request.key else {
            // A request without a size touches the page in which it begins.
            return self.extents.touched(volume.unwrap_or(0), offset, size.unwrap_or(1));
        };
        let mixed = |volume: u64| self.mixer.tag(key ^ volume).0;
        let tag = |volume: u64| self.mixer.tag(volume).0;
        let Some(bytes) = size else {
            let first = volume.map_or(key, |volume| mixed(tag(volume)));
            return Ok(Run::once(first, 1));
        };
        // The pages of an object are numbered from its hash on. Among 2^64 numbers, pages of two
        // objects are unlikely to overlap.
        let count = bytes.div_ceil(self.extents.page_bytes());
        if count > REQUEST_PAGES_MAX {
            return Err(format!("an object of {count} pages; the most that is taken is {REQUEST_PAGES_MAX}"));
        }
        Ok(Run::once(mixed(volume.map_or(0, tag)), count))
    }
}

impl Format for Table {
    fn line(&mut self, line: &[u8], runs: &mut VecDeque<Run>) -> Result<(), String> {
        if self.header_left > 0 {
            self.header_left -= 1;
            if self.header_left == 0 && self.columns.names.is_some() {
                self.split(line)?;
                self.find_names()?;
            }
            return Ok(());
        }
        if self.places.is_empty() {
            return Err("the header does not have the named columns".into());
        }
        if line.starts_with(b"#") && self.places[0].is_number() {
            return Ok(());
        }
        self.split(line)?;
        let mut request = Request::default();
        let mut missing = None;
        for place in 0..self.places.len() {
            let role = self.places[place];
            if role == Role::Ignored {
                continue;
            }
            let in_column = |what: String| format!("column {} ({role}): {what}", place + 1);
            if place < self.fields.len() {
                self.take(role, place, &mut request).map_err(in_column)?;
            } else if missing.is_none() {
                let what = format!("the line has only {} columns", self.fields.len());
                missing = Some(in_column(what));
            }
        }
        if request.is_no_access {
            // Its line may be short: a deletion, say, has no size.
            return Ok(());
        }
        if let Some(missing) = missing {
            return Err(missing);
        }
        let run = self.run(&request)?;
        runs.push_back(Run { times: request.times.unwrap_or(1), ..run });
        Ok(())
    }
}

/// Returns 64 bits that stand for a text.
fn hash(mixer: &Mixer, text: &[u8]) -> u64 {
    text.chunks(8).fold(text.len() as u64, |sum, part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        mixer.tag(sum ^ u64::from_le_bytes(word)).0
    })
}
