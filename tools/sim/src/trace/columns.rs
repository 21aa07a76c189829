//! Tables of requests whose columns people name: `--columns time,op,offset,size`.
//!
//! A line is a request, and its fields stand between separators, in quotes if need be (RFC 4180),
//! or between white space. What a column means is a [`Role`]; columns without one are passed over.
//! A request becomes pages as in `extent`. Keys become page numbers: a whole number is its page,
//! other text is hashed to 64 bits.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use csv_core::{ReadFieldResult, ReaderBuilder};
use octavo_table::Mixer;

use crate::trace::extent::{PageBytes, REQUEST_PAGES_MAX, Run, Volumes};
use crate::trace::lines::{Format, number, shown};

/// What a column says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Nothing that counts.
    Ignored,
    /// When it was. Checked to be a number, and not used: lines count in their order.
    Time,
    /// Whether it reads or writes, or touches no data.
    Operation,
    /// Where it begins, in units of so many bytes, or in pages.
    Offset(Unit),
    /// How much it touches.
    Size(Unit),
    /// Which volume it is of: a number or a name.
    Volume,
    /// What it is of, in place of a volume and an offset.
    Key,
}

/// What a number of an offset or a size counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes(u64),
    Pages,
}

/// How wide a line is at most.
const COLUMNS_MAX: usize = 64;

/// What the columns of a table mean.
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
    /// The names in the table's first line, where columns are found by them.
    names: Option<Vec<String>>,
    separator: Separator,
    header_lines: u64,
}

/// What stands between fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Separator {
    /// One character of one byte.
    Byte(u8),
    /// One or more spaces or tabs.
    Space,
}

const SHAPE: &str = "columns are such as time,op,offset:sectors,size:bytes,volume, or by their names such as \
    offset=Offset,size=Size; there are time, op, offset, size, volume, key, and - for one that does not count";

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
                // The last colon, and only before a known unit: names may have some.
                Some(rest) => match rest.rsplit_once(':').filter(|(_, unit)| Unit::of(unit).is_some()) {
                    Some((name, unit)) => (word, Some(name), Some(unit)),
                    None => (word, Some(rest), None),
                },
            };
            let role = Role::of(word, unit).map_err(wrong)?;
            let same = |other: &Role| std::mem::discriminant(other) == std::mem::discriminant(&role);
            if role != Role::Ignored && roles.iter().any(same) {
                return Err(wrong(format!("{word} is there twice")));
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
    /// The same between other separators.
    pub fn separated_by(self, separator: Separator) -> Columns {
        Columns { separator, ..self }
    }

    /// The same below so many lines that are no requests. Columns found by their names need one at
    /// least, the last of which has the names.
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
                    "\"{text}\" separates no fields; comma, semicolon, tab, space or one character such as | does"
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
        })
    }
}

impl Role {
    fn of(word: &str, unit: Option<&str>) -> Result<Role, String> {
        let amount = || {
            match unit {
            None => Ok(Unit::Bytes(1)),
            Some(unit) => Unit::of(unit).ok_or_else(|| {
                format!("\"{unit}\" is no unit of {word}: bytes, sectors (of 512 bytes), kib, pages, or a number of bytes")
            }),
        }
        };
        let role = match word {
            "" | "-" | "_" => Role::Ignored,
            "time" if unit.is_none_or(|unit| ["s", "ms", "us", "ns"].contains(&unit)) => {
                return Ok(Role::Time);
            }
            "time" => return Err("a time is in s, ms, us or ns".into()),
            "op" => Role::Operation,
            "offset" => return Ok(Role::Offset(amount()?)),
            "size" => return Ok(Role::Size(amount()?)),
            "volume" | "tenant" => Role::Volume,
            "key" | "object" => Role::Key,
            _ => return Err(format!("\"{word}\" is no column")),
        };
        match unit {
            None => Ok(role),
            Some(_) => Err(format!("{word} has no unit")),
        }
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

/// A table, as it is read.
pub struct Table {
    columns: Columns,
    pages: PageBytes,
    page_bytes: u64,
    volumes: Volumes,
    mixer: Mixer,
    header_left: u64,
    /// Role by place in the line, once that is known.
    places: Vec<Role>,
    /// The fields of a line, one behind the other, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
}

/// A request, as far as its line was read.
#[derive(Default)]
struct Request {
    volume: Option<u64>,
    offset: u64,
    size: Option<u64>,
    key: Option<u64>,
    is_no_access: bool,
}

impl Table {
    /// Before its first line.
    pub fn new(columns: Columns, pages: PageBytes, page_bytes: u64) -> Table {
        let places = if columns.names.is_none() { columns.roles.clone() } else { Vec::new() };
        Table {
            header_left: columns.header_lines,
            columns,
            pages,
            page_bytes,
            volumes: Volumes::default(),
            mixer: Mixer::new(0),
            places,
            text: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Takes a line apart; fields behind the last that counts are left.
    fn split(&mut self, line: &[u8], fields_max: usize) {
        self.text.clear();
        self.ends.clear();
        let Separator::Byte(separator) = self.columns.separator else {
            for word in line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty()) {
                if self.ends.len() == fields_max {
                    break;
                }
                self.text.extend_from_slice(word);
                self.ends.push(self.text.len());
            }
            return;
        };
        let mut reader = ReaderBuilder::new().delimiter(separator).build();
        let (mut rest, mut end) = (line, 0);
        self.text.resize(line.len() + 1, 0);
        while self.ends.len() < fields_max {
            let (result, read, written) = reader.read_field(rest, &mut self.text[end..]);
            rest = &rest[read..];
            end += written;
            match result {
                ReadFieldResult::Field { record_end } => {
                    self.ends.push(end);
                    if record_end {
                        return;
                    }
                }
                // An empty input ends the last field.
                ReadFieldResult::InputEmpty => {}
                ReadFieldResult::OutputFull | ReadFieldResult::End => return,
            }
        }
    }

    fn field(&self, place: usize) -> Option<&[u8]> {
        let end = *self.ends.get(place)?;
        let begin = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(self.text[begin..end].trim_ascii())
    }

    /// Finds the named columns in the table's header.
    fn find_names(&mut self) -> Result<(), String> {
        let Some(names) = &self.columns.names else { return Ok(()) };
        let count = self.ends.len();
        let header = |place| self.field(place).unwrap_or_default();
        let mut places = vec![Role::Ignored; count];
        for (name, role) in names.iter().zip(&self.columns.roles) {
            let is_named = |place: &usize| header(*place).eq_ignore_ascii_case(name.as_bytes());
            let place = (0..count).find(is_named).ok_or_else(|| {
                let there: Vec<String> =
                    (0..count.min(COLUMNS_MAX)).map(|place| shown(header(place))).collect();
                format!("no column is called \"{name}\" here; there are {}", there.join(", "))
            })?;
            places[place] = *role;
        }
        self.places = places;
        Ok(())
    }

    fn take(&mut self, role: Role, place: usize, request: &mut Request) -> Result<(), String> {
        let field =
            self.field(place).ok_or_else(|| format!("the line has only {} columns", self.ends.len()))?;
        match role {
            Role::Ignored => {}
            Role::Time => {
                let time = str::from_utf8(field).ok().and_then(|text| text.parse::<f64>().ok());
                time.filter(|time| time.is_finite())
                    .ok_or_else(|| format!("\"{}\" is no number", shown(field)))?;
            }
            Role::Operation => request.is_no_access = !is_access(field)?,
            Role::Offset(unit) => request.offset = unit.bytes(number(field)?, self.page_bytes)?,
            Role::Size(unit) => request.size = Some(unit.bytes(number(field)?, self.page_bytes)?),
            Role::Volume => {
                let field = field.to_owned();
                if field.is_empty() {
                    return Err("it is empty".into());
                }
                request.volume = Some(self.volumes.number(&field)?);
            }
            Role::Key => {
                if field.is_empty() {
                    return Err("it is empty".into());
                }
                // Numbers as people write them: 007 is a name.
                let canonical = field == b"0" || field[0] != b'0';
                let plain = number(field).ok().filter(|_| canonical);
                request.key = Some(plain.unwrap_or_else(|| hash(&self.mixer, field)));
            }
        }
        Ok(())
    }

    fn run(&self, request: &Request) -> Result<Run, String> {
        let Some(key) = request.key else {
            // Without a size a request touches the page that it begins in.
            return self.pages.touched(
                request.volume.unwrap_or(0),
                request.offset,
                request.size.unwrap_or(1),
            );
        };
        let Some(bytes) = request.size else {
            let alone = |key| Run { first: key, count: 1 };
            return Ok(match request.volume {
                None => alone(key),
                Some(volume) => alone(self.mixer.tag(key ^ self.mixer.tag(volume).0).0),
            });
        };
        // An object of several pages: they follow its hash, where no other's are.
        let count = bytes.div_ceil(self.page_bytes);
        if count > REQUEST_PAGES_MAX {
            return Err(format!(
                "an object of {count} pages; more than {REQUEST_PAGES_MAX} are taken for a mistake"
            ));
        }
        let first = self.mixer.tag(key ^ request.volume.map_or(0, |volume| self.mixer.tag(volume).0)).0;
        Ok(Run { first, count })
    }
}

impl Format for Table {
    fn line(&mut self, line: &[u8], runs: &mut VecDeque<Run>) -> Result<(), String> {
        if self.header_left > 0 {
            self.header_left -= 1;
            if self.header_left == 0 && self.columns.names.is_some() {
                self.split(line, COLUMNS_MAX);
                self.find_names()?;
            }
            return Ok(());
        }
        if self.places.is_empty() {
            return Err("the columns were not found by their names".into());
        }
        self.split(line, self.places.len());
        let mut request = Request::default();
        for place in 0..self.places.len() {
            let role = self.places[place];
            if role != Role::Ignored {
                self.take(role, place, &mut request)
                    .map_err(|what| format!("column {} ({role}): {what}", place + 1))?;
            }
        }
        if !request.is_no_access {
            runs.push_back(self.run(&request)?);
        }
        Ok(())
    }
}

/// Whether an operation touches data. Discards and flushes do not.
fn is_access(field: &[u8]) -> Result<bool, String> {
    const ACCESSES: [&[u8]; 12] =
        [b"r", b"w", b"read", b"write", b"0", b"1", b"rs", b"ws", b"ra", b"get", b"put", b"set"];
    const OTHERS: [&[u8]; 7] = [b"d", b"f", b"discard", b"trim", b"unmap", b"flush", b"sync"];
    let is_among = |words: &[&[u8]]| words.iter().any(|word| field.eq_ignore_ascii_case(word));
    match (is_among(&ACCESSES), is_among(&OTHERS)) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(format!(
            "\"{}\" is no operation: r, w, read, write, get, put, set, 0 (read) or 1 (write) is",
            shown(field)
        )),
    }
}

/// 64 bits that stand for a text.
fn hash(mixer: &Mixer, text: &[u8]) -> u64 {
    text.chunks(8).fold(text.len() as u64, |sum, part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        mixer.tag(sum ^ u64::from_le_bytes(word)).0
    })
}
