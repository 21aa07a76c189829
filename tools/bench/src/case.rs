//! What a case is: the keys that a suite's file may set, their kinds and what they are by default.
//!
//! A key with an array of values stands for as many cases; with several arrays, for every
//! combination. So a figure's points are one line of a file. What is not here: files and figures
//! (`suite.rs`), what a driver makes of the keys.

use std::fmt;
use std::marker::PhantomData;

use octavo::{CacheMode, PolicyName};
use serde::Serialize;
use serde::de::value::{BoolDeserializer, F64Deserializer, I64Deserializer, StrDeserializer};
use serde::de::{self, Deserialize, Deserializer, IntoDeserializer, SeqAccess, Visitor};

use crate::clock::Clock;
use crate::machine;

/// A figure or a word about a case, as rows have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// Yes or no.
    Flag(bool),
    /// A whole number.
    Count(u64),
    /// Another number.
    Number(f64),
    /// A word.
    Text(String),
}

impl Value {
    /// As a number, for axes.
    pub fn number(&self) -> Option<f64> {
        match self {
            Value::Flag(_) | Value::Text(_) => None,
            Value::Count(count) => Some(*count as f64),
            Value::Number(number) => Some(*number),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(flag) => f.write_str(if *flag { "yes" } else { "no" }),
            Value::Count(count) => write!(f, "{count}"),
            Value::Number(number) => write!(f, "{number:.4}"),
            Value::Text(text) => f.write_str(text),
        }
    }
}

/// A kind of value that a key may have.
trait Parameter: Clone {
    /// As rows have it.
    fn value(&self) -> Value;
    /// As it stands in the name of a case.
    fn word(&self) -> String {
        self.value().to_string()
    }
}

/// Kinds that are one of some words.
macro_rules! words {
    ($(#[$doc:meta])* $kind:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind { $($(#[$of])* $variant,)* }

        impl $kind {
            /// Its word.
            pub fn name(self) -> &'static str {
                match self { $($kind::$variant => $word,)* }
            }
        }

        impl Parameter for $kind {
            fn value(&self) -> Value {
                Value::Text(self.name().into())
            }
        }

        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let word = String::deserialize(from)?;
                match &*word {
                    $($word => Ok($kind::$variant),)*
                    _ => Err(de::Error::custom(format!(
                        "\"{word}\" is none of {}", [$($word),*].join(", ")
                    ))),
                }
            }
        }
    };
}

words! {
    /// Which driver runs a case.
    Driver {
        /// Reads and writes of pages that are all cached.
        Hits = "hits",
        /// Random pages of a file much larger than the cache.
        Misses = "misses",
        /// Hits among misses that fill and turn over the cache.
        Churn = "churn",
        /// Reads through a cache of a part of a file.
        Through = "through",
        /// YCSB's mixes over records in pages.
        Ycsb = "ycsb",
        /// Reads while the table grows and shrinks.
        Resize = "resize",
        /// How evenly pages fall on segments.
        Evenness = "evenness",
        /// Writes that are replied to before they are written, and all that is written.
        Writeback = "writeback",
        /// Stores of hits to memory that others read.
        Stores = "stores",
        /// What a cache takes of memory.
        Memory = "memory",
        /// The share of time that `misses` spends in locks.
        Locks = "locks",
        /// Hit ratios of policies, simulated.
        Simulate = "simulate",
        /// Lookups with a bound on memory, beside Linux with the same.
        Bounded = "bounded",
        /// Reads over NBD.
        Nbd = "nbd",
        /// Pages of emulated nodes.
        Numa = "numa",
        /// Random reads from several emulated nodes.
        Crossing = "crossing",
        /// Copies of pages on emulated nodes.
        Twins = "twins",
        /// Tenants in one cache and in partitions.
        Partitions = "partitions",
    }
}

words! {
    /// Where a store's bytes lie.
    Place {
        /// A file where the caller says.
        Disk = "disk",
        /// A file in the kernel's memory.
        Memory = "memory",
        /// A block device over such a file, where root may have one.
        Ram = "ram",
    }
}

words! {
    /// How operations are asked for.
    Call {
        /// One blocking call each.
        Single = "single",
        /// Many at a call.
        Batch = "batch",
        /// A guard on the page, and no copy.
        Pin = "pin",
        /// Many guards at a call.
        PinBatch = "pin-batch",
        /// The queue: so many in flight.
        Queue = "queue",
    }
}

words! {
    /// Who asks for pages of two nodes.
    Load {
        /// Threads of one node, for pages of both.
        Near = "near",
        /// Threads of both.
        Both = "both",
        /// Threads of one node, for its own pages.
        Own = "own",
        /// Threads of one node, and later of the other.
        Moving = "moving",
        /// As `near`, for twice the pages that there is room for.
        Pressure = "pressure",
    }
}

words! {
    /// What tenants of one memory do.
    Experiment {
        /// One reads at random, one in order.
        Pair = "pair",
        /// One builds programs, one reads in order.
        Build = "build",
        /// Two change roles.
        Phases = "phases",
        /// Two do not.
        Stationary = "stationary",
        /// One scans beside one that was promised memory.
        Isolation = "isolation",
    }
}

words! {
    /// YCSB's mixes of operations (Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC '10).
    Mix {
        /// 50 reads, 50 updates.
        A = "a",
        /// 95 reads, 5 updates.
        B = "b",
        /// Reads.
        C = "c",
        /// 95 reads of what is new, 5 inserts.
        D = "d",
        /// 95 short scans, 5 inserts.
        E = "e",
        /// 50 reads, 50 reads with an update of what was read.
        F = "f",
    }
}

/// Bytes, as `4096` or `"1GiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// Where accesses fall: a line of `octavo_sim::generate` that may leave `pages` out, or `one`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// Threads, as a number or as a multiple of the processors (`"2x"`); at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads(pub usize);

/// A whole number from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub usize);

/// A share in a hundred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(pub u32);

/// The engine's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy(pub PolicyName);

/// A machine whose nodes are emulated, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote(pub String);

/// The engine's mode of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub CacheMode);

macro_rules! keys {
    ($($(#[$doc:meta])* $key:ident: $kind:ty = $default:expr;)*) => {
        /// One thing to measure.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Case {
            /// What rows call it.
            pub name: String,
            /// Who runs, by name; the first is what the case is about.
            pub contestants: Vec<String>,
            /// Whom the first is compared with: the fastest of these.
            pub reference: Vec<String>,
            /// What time is measured with. None: the driver knows.
            pub clock: Option<Clock>,
            /// Time for all slices. None: the driver knows.
            pub seconds: Option<f64>,
            /// Whether operations are timed one by one. None: the driver knows.
            pub timed: Option<bool>,
            $($(#[$doc])* pub $key: $kind,)*
        }

        /// A case, or many, as a file has it.
        #[derive(Clone, Debug, Default, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct CaseText {
            pub name: Option<String>,
            pub contestants: Option<Vec<String>>,
            pub reference: Option<Vec<String>>,
            pub clock: Option<ClockText>,
            pub seconds: Option<f64>,
            pub timed: Option<bool>,
            $(pub $key: Option<Many<$kind>>,)*
        }

        impl CaseText {
            /// What it says, and what `other` says where it says nothing.
            pub fn or(self, other: &CaseText) -> CaseText {
                CaseText {
                    name: self.name.or_else(|| other.name.clone()),
                    contestants: self.contestants.or_else(|| other.contestants.clone()),
                    reference: self.reference.or_else(|| other.reference.clone()),
                    clock: self.clock.or_else(|| other.clock.clone()),
                    seconds: self.seconds.or(other.seconds),
                    timed: self.timed.or(other.timed),
                    $($key: self.$key.or_else(|| other.$key.clone()),)*
                }
            }

            /// All combinations of its values; the last key changes fastest.
            pub fn cases(&self) -> Vec<Case> {
                let mut cases = vec![Case {
                    name: self.name.clone().unwrap_or_default(),
                    contestants: self.contestants.clone().unwrap_or_default(),
                    reference: self.reference.clone().unwrap_or_default(),
                    clock: self.clock.as_ref().map(|clock| clock.0),
                    seconds: self.seconds,
                    timed: self.timed,
                    $($key: $default,)*
                }];
                $(
                    if let Some(Many(values)) = &self.$key {
                        let with = |case: &Case| {
                            let case = case.clone();
                            values.iter().map(move |value| Case { $key: value.clone(), ..case.clone() })
                        };
                        cases = cases.iter().flat_map(with).collect();
                    }
                )*
                for case in &mut cases {
                    $(
                        let place = concat!("{", stringify!($key), "}");
                        if case.name.contains(place) {
                            case.name = case.name.replace(place, &case.$key.word());
                        }
                    )*
                }
                // Multiples of few processors may be the same number of threads.
                let mut different: Vec<Case> = Vec::new();
                for case in cases {
                    if !different.contains(&case) {
                        different.push(case);
                    }
                }
                different
            }
        }

        impl Case {
            /// With another size of the cache's frames.
            pub fn with_memory_bytes(self, bytes: u64) -> Case {
                Case { memory: Size(bytes), ..self }
            }

            /// All keys.
            pub const KEYS: &[&str] = &[$(stringify!($key)),*];

            /// The value of a key.
            pub fn value(&self, key: &str) -> Option<Value> {
                match key {
                    $(stringify!($key) => Some(self.$key.value()),)*
                    _ => None,
                }
            }
        }
    };
}

keys! {
    /// Who runs it.
    driver: Driver = Driver::Hits;
    /// Where the store lies.
    store: Place = Place::Memory;
    /// Bytes of the cache's frames.
    memory: Size = Size(1 << 30);
    /// Bytes of the store.
    file: Size = Size(4 << 30);
    /// Where operations fall.
    workload: Pattern = Pattern("uniform".into());
    /// How they are asked for.
    call: Call = Call::Single;
    /// Bytes of an operation.
    bytes: Size = Size(128);
    /// Operations of a call.
    batch: Count = Count(32);
    /// Operations in flight.
    depth: Count = Count(32);
    /// How many operations in a hundred read; the others write.
    reads: Percent = Percent(100);
    /// How many operations in a hundred ask for pages that are there.
    hits: Percent = Percent(100);
    /// The cache's share of the file, in a hundred.
    share: Percent = Percent(10);
    /// The mix of operations.
    mix: Mix = Mix::C;
    /// What the tenants of a memory do.
    experiment: Experiment = Experiment::Pair;
    /// Bytes that are read ahead at most; 0: nothing is.
    ahead: Size = Size(0);
    /// The engine's policy.
    policy: Policy = Policy(PolicyName::default());
    /// When the engine's writes are replied to.
    mode: Mode = Mode(CacheMode::default());
    /// The machine whose distances between nodes are emulated.
    machine: Remote = Remote("2x-xeon-4410y".into());
    /// Where those sit who ask for pages of emulated nodes.
    load: Load = Load::Near;
    /// Threads that do so side by side.
    threads: Threads = Threads(1);
}

impl Size {
    fn parse(text: &str) -> Result<Size, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (count, unit) = text.split_at(digits);
        let shift = match unit.trim() {
            "" | "B" => 0,
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            _ => return Err(format!("\"{text}\" is no size such as 4096 or \"64MiB\"")),
        };
        let count = count.parse::<u64>().ok().filter(|count| *count <= i64::MAX as u64 >> shift);
        count.map(|count| Size(count << shift)).ok_or_else(|| format!("\"{text}\" is no size"))
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Pattern, String> {
        let pattern = Pattern(text.into());
        // With any number of pages, so that what is wrong is told with its line and not when it is run.
        octavo_sim::generate::parse(&pattern.over(1000, 1)).map_err(|error| error.to_string())?;
        Ok(pattern)
    }

    /// The line of the generator, over so many pages, without an end.
    pub fn over(&self, pages: u64, seed: u64) -> String {
        self.line(pages, seed, i64::MAX as u64)
    }

    /// The same, of so many accesses.
    pub fn line(&self, pages: u64, seed: u64, requests: u64) -> String {
        let text = if self.0 == "one" { "uniform:pages=1" } else { &self.0 };
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let with =
            if rest.contains("pages=") { text.into() } else { format!("{kind}:pages={{pages}},{rest}") };
        let line = format!("{with},seed={seed},requests={requests}");
        line.replace("{pages}", &pages.to_string()).replace(",,", ",")
    }
}

impl Parameter for Pattern {
    fn value(&self) -> Value {
        Value::Text(self.0.clone())
    }

    fn word(&self) -> String {
        self.0.split(':').next().unwrap_or_default().into()
    }
}

impl Parameter for Size {
    fn value(&self) -> Value {
        Value::Count(self.0)
    }

    fn word(&self) -> String {
        match self.0 {
            bytes if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 30) => format!("{}GiB", bytes >> 30),
            bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
            bytes => bytes.to_string(),
        }
    }
}

impl Parameter for Threads {
    fn value(&self) -> Value {
        Value::Count(self.0 as u64)
    }
}

impl Parameter for Count {
    fn value(&self) -> Value {
        Value::Count(self.0 as u64)
    }
}

impl Parameter for Percent {
    fn value(&self) -> Value {
        Value::Count(self.0.into())
    }
}

impl Parameter for Policy {
    fn value(&self) -> Value {
        Value::Text(self.0.name().into())
    }
}

impl Parameter for Remote {
    fn value(&self) -> Value {
        Value::Text(self.0.clone())
    }
}

impl Parameter for Mode {
    fn value(&self) -> Value {
        Value::Text(self.0.name().into())
    }
}

/// A number or a text, before it is known what it stands for.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Scalar {
    Number(i64),
    Text(String),
}

/// Reads a kind from a number or a text.
macro_rules! from_scalar {
    ($($kind:ident: $number:expr, $text:expr;)*) => {$(
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let parsed: Result<$kind, String> = match Scalar::deserialize(from)? {
                    Scalar::Number(number) => $number(number),
                    Scalar::Text(text) => $text(&text),
                };
                parsed.map_err(de::Error::custom)
            }
        }
    )*};
}

from_scalar! {
    Size: |bytes| u64::try_from(bytes).map(Size).map_err(|_| "a size is not negative".to_owned()), Size::parse;
    Pattern: |_| Err("a workload is a line of text".to_owned()), Pattern::parse;
    Threads: |count| positive(count).map(Threads), threads;
    Count: |count| positive(count).map(Count), |_: &str| Err("a number is expected".to_owned());
    Percent: percent, |_: &str| Err("a number is expected".to_owned());
    Policy: |_| Err("a policy has a name".to_owned()), policy;
    Remote: |_| Err("a machine has a name".to_owned()), remote;
    Mode: |_| Err("a mode has a name".to_owned()), mode;
}

/// More threads, requests in flight or reads of a batch than this are a mistake.
const COUNT_MAX: i64 = 65536;

fn positive(count: i64) -> Result<usize, String> {
    match count {
        1..=COUNT_MAX => Ok(count as usize),
        _ => Err(format!("{count}: 1 to {COUNT_MAX} are possible")),
    }
}

fn percent(share: i64) -> Result<Percent, String> {
    match share {
        0..=100 => Ok(Percent(share as u32)),
        _ => Err(format!("{share}: a share in a hundred is 0 to 100")),
    }
}

fn threads(text: &str) -> Result<Threads, String> {
    let times = text.strip_suffix('x').and_then(|times| times.parse::<f64>().ok());
    let times = times.filter(|times| *times > 0.0 && *times <= 64.0);
    let times = times.ok_or_else(|| format!("\"{text}\": threads are a number, or \"2x\" the processors"))?;
    Ok(Threads(((machine::cpus() as f64 * times) as usize).max(1)))
}

fn policy(name: &str) -> Result<Policy, String> {
    let found = PolicyName::ALL.into_iter().find(|policy| policy.name() == name);
    found.map(Policy).ok_or_else(|| {
        let names: Vec<&str> = PolicyName::ALL.iter().map(|policy| policy.name()).collect();
        format!("\"{name}\" is none of {}", names.join(", "))
    })
}

fn remote(name: &str) -> Result<Remote, String> {
    let known = octavo::numa::Machine::named(name);
    known.map(|machine| Remote(machine.name.into())).ok_or_else(|| {
        let names = octavo::numa::MACHINES.map(|machine| machine.name);
        format!("\"{name}\" is none of {}", names.join(", "))
    })
}

fn mode(name: &str) -> Result<Mode, String> {
    let mut modes = [CacheMode::Writethrough, CacheMode::Writeback].into_iter();
    let found = modes.find(|mode| mode.name() == name);
    found.map(Mode).ok_or_else(|| format!("\"{name}\" is none of writethrough, writeback"))
}

/// A clock by its name.
#[derive(Clone, Debug)]
pub(crate) struct ClockText(pub Clock);

impl<'de> Deserialize<'de> for ClockText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let found = [Clock::Thread, Clock::Wall].into_iter().find(|clock| clock.name() == name);
        let wrong = || de::Error::custom(format!("\"{name}\" is none of thread_cpu, wall"));
        found.map(ClockText).ok_or_else(wrong)
    }
}

/// One value, or an array of them.
#[derive(Clone, Debug)]
pub(crate) struct Many<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ManyVisitor(PhantomData))
    }
}

struct ManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ManyVisitor<T> {
    type Value = Many<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, or an array of values")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Many<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element()? {
            values.push(value);
        }
        if values.is_empty() {
            return Err(de::Error::custom("an array without values stands for no case"));
        }
        Ok(Many(values))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Many<T>, E> {
        let from: I64Deserializer<E> = number.into_deserializer();
        Ok(Many(vec![T::deserialize(from)?]))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Many<T>, E> {
        let from: F64Deserializer<E> = number.into_deserializer();
        Ok(Many(vec![T::deserialize(from)?]))
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Many<T>, E> {
        let from: BoolDeserializer<E> = flag.into_deserializer();
        Ok(Many(vec![T::deserialize(from)?]))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Many<T>, E> {
        let from: StrDeserializer<'_, E> = text.into_deserializer();
        Ok(Many(vec![T::deserialize(from)?]))
    }
}
