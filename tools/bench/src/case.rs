//! Cases: the keys that a suite's file may set, their types and their defaults.
//!
//! A key with an array of values stands for one case per value, and several arrays stand for all
//! combinations. One line of a file can therefore define all points of a figure.
//!
//! Not here: files and figures (`suite.rs`), and what a driver does with the keys.

use std::fmt;
use std::marker::PhantomData;

use octavo::numa::{MACHINES, Machine};
use octavo::{CacheMode, PolicyName};
use serde::de::value::{BoolDeserializer, F64Deserializer, I64Deserializer, StrDeserializer};
use serde::de::{self, Deserialize, Deserializer, IntoDeserializer, SeqAccess, Visitor};

use crate::machine;
pub use crate::value::Value;

/// The type of a key.
trait Parameter: Clone {
    /// Returns the value in rows.
    fn value(&self) -> Value;
    /// Returns the text in the name of a case.
    fn word(&self) -> String {
        self.value().to_string()
    }
}

/// Returns the value of `all` that is called `word`.
fn one_of<T: Copy>(word: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T, String> {
    all.iter().copied().find(|item| name(*item) == word).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|item| name(*item)).collect();
        format!("\"{word}\" is none of {}", names.join(", "))
    })
}

/// Types whose values are words.
macro_rules! words {
    ($($(#[$doc:meta])* $kind:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind { $($(#[$of])* $variant,)* }

        impl $kind {
            /// Returns the word of the value.
            pub fn name(self) -> &'static str {
                match self { $($kind::$variant => $word,)* }
            }
        }

        impl Parameter for $kind {
            fn value(&self) -> Value {
                self.name().into()
            }
        }

        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                one_of(&String::deserialize(from)?, &[$($kind::$variant),*], $kind::name).map_err(de::Error::custom)
            }
        }
    )*};
}

words! {
    /// The clock that measures the time of a slice.
    Clock {
        /// Processor time of the calling thread, for loops that never wait. Time that other
        /// programs take does not count.
        Thread = "thread_cpu",
        /// Monotonic time, for everything that waits.
        Wall = "wall",
    }

    /// The medium of a store.
    Place {
        /// A file on a disk, at the path that the user gives.
        Disk = "disk",
        /// A file in memory (tmpfs).
        Memory = "memory",
        /// A block device over a file in memory, if the user has the permission to create one.
        Ram = "ram",
    }

    /// How operations are requested.
    Call {
        /// One blocking call per operation.
        Single = "single",
        /// One call for many operations.
        Batch = "batch",
        /// One pin per operation, without a copy.
        Pin = "pin",
        /// One call for many pins.
        PinBatch = "pin-batch",
        /// A queue, with `depth` operations in flight.
        Queue = "queue",
    }

    /// The nodes of the threads, and the nodes of the pages that they access.
    Load {
        /// Threads of one node, pages of both.
        Near = "near",
        /// Threads of both nodes, pages of both.
        Both = "both",
        /// Threads of one node, pages of the same node.
        Own = "own",
        /// Threads of one node, and later of the other.
        Moving = "moving",
        /// As `near`, but with twice as many pages as frames.
        Pressure = "pressure",
    }

    /// What the tenants of one memory do.
    Experiment {
        /// One reads at random, one sequentially.
        Pair = "pair",
        /// One builds programs, one reads sequentially.
        Build = "build",
        /// Two tenants change roles.
        Phases = "phases",
        /// Two tenants keep their roles.
        Stationary = "stationary",
        /// One scans beside one with guaranteed memory.
        Isolation = "isolation",
    }

    /// YCSB's mixes, in percent (Cooper et al., "Benchmarking Cloud Serving Systems with YCSB",
    /// SoCC '10).
    Mix {
        /// 50 reads, 50 updates.
        A = "a",
        /// 95 reads, 5 updates.
        B = "b",
        /// 100 reads.
        C = "c",
        /// 95 reads of the newest records, 5 inserts.
        D = "d",
        /// 95 short scans, 5 inserts.
        E = "e",
        /// 50 reads, 50 reads that are followed by an update of the same record.
        F = "f",
    }
}

/// The name of a driver. `drivers` checks that it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverName(pub String);

/// What a program does. The driver checks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job(pub String);

/// Bytes: `4096` or `"1GiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// The pattern of accessed pages: a line of `octavo_sim::generate`, in which `pages` is optional,
/// or `one`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// A number of threads, or a multiple of the processors (`"2x"`). At least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads(pub usize);

/// A whole number from 1 to [`COUNT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub usize);

/// A share in percent, from 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(pub u32);

impl Percent {
    /// Returns whether an operation with the random number `random` belongs to the share.
    pub fn has(self, random: u64) -> bool {
        octavo_random::scale(random, 100) < self.0.into()
    }
}

/// The engine's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy(pub PolicyName);

/// A machine whose NUMA distances are emulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remote(pub Machine);

/// The engine's write mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub CacheMode);

macro_rules! keys {
    ($($(#[$doc:meta])* $key:ident: $kind:ty = $default:expr;)*) => {
        /// One measurement.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Case {
            /// The name in rows.
            pub name: String,
            /// The names of the contestants. The first is what the case measures.
            pub contestants: Vec<String>,
            /// The references: the first contestant is compared with the fastest of them.
            pub reference: Vec<String>,
            /// The clock that slices are timed with. Default: the driver's.
            pub clock: Option<Clock>,
            /// The total time of all slices. Default: the driver's.
            pub seconds: Option<f64>,
            /// Whether each operation is timed. Default: the driver's.
            pub timed: Option<bool>,
            /// Whether the case runs only if the user names it, because it takes long.
            pub by_name: bool,
            $($(#[$doc])* pub $key: $kind,)*
        }

        /// One or more cases, as a file contains them.
        #[derive(Clone, Debug, Default, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct CaseText {
            pub name: Option<String>,
            pub contestants: Option<Vec<String>>,
            pub reference: Option<Vec<String>>,
            pub clock: Option<Clock>,
            pub seconds: Option<f64>,
            pub timed: Option<bool>,
            pub by_name: Option<bool>,
            $(pub $key: Option<Many<$kind>>,)*
        }

        impl CaseText {
            /// Returns these keys, plus those of `other` that are not set here.
            pub fn or(self, other: &CaseText) -> CaseText {
                CaseText {
                    name: self.name.or_else(|| other.name.clone()),
                    contestants: self.contestants.or_else(|| other.contestants.clone()),
                    reference: self.reference.or_else(|| other.reference.clone()),
                    clock: self.clock.or(other.clock),
                    seconds: self.seconds.or(other.seconds),
                    timed: self.timed.or(other.timed),
                    by_name: self.by_name.or(other.by_name),
                    $($key: self.$key.or_else(|| other.$key.clone()),)*
                }
            }

            /// Returns all combinations of the values. The last key changes fastest.
            pub fn cases(&self) -> Vec<Case> {
                let mut cases = vec![Case {
                    name: self.name.clone().unwrap_or_default(),
                    contestants: self.contestants.clone().unwrap_or_default(),
                    reference: self.reference.clone().unwrap_or_default(),
                    clock: self.clock,
                    seconds: self.seconds,
                    timed: self.timed,
                    by_name: self.by_name.unwrap_or(false),
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
                // On a machine with few processors, two multiples can be the same number of
                // threads.
                let mut different: Vec<Case> = Vec::new();
                for case in cases {
                    if !different.contains(&case) {
                        different.push(case);
                    }
                }
                different
            }
        }

        impl Default for Case {
            fn default() -> Case {
                CaseText::default().cases().remove(0)
            }
        }

        impl Case {
            /// Returns the same case with another size of the cache's frames.
            pub fn with_memory_bytes(self, bytes: u64) -> Case {
                Case { memory: Size(bytes), ..self }
            }

            /// Returns whether this contestant takes part.
            pub fn has(&self, contestant: &str) -> bool {
                self.contestants.iter().any(|name| name == contestant)
            }

            /// The names of all keys.
            pub const KEYS: &[&str] = &[$(stringify!($key)),*];

            /// Returns the value of a key.
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
    /// The driver that runs the case.
    driver: DriverName = DriverName("hits".into());
    /// Where the store lies.
    store: Place = Place::Memory;
    /// Bytes of the cache's frames.
    memory: Size = Size(1 << 30);
    /// Bytes of the store.
    file: Size = Size(4 << 30);
    /// Bytes of a program's files, in percent of the memory.
    files_percent: Count = Count(200);
    /// Which pages are accessed.
    workload: Pattern = Pattern("uniform".into());
    /// How operations are requested.
    call: Call = Call::Single;
    /// Bytes of an operation.
    bytes: Size = Size(128);
    /// Operations of a batch.
    batch: Count = Count(32);
    /// Operations in flight.
    depth: Count = Count(32);
    /// The share of reads, in percent. The other operations are writes.
    reads: Percent = Percent(100);
    /// The share of operations whose pages are resident, in percent.
    hits: Percent = Percent(100);
    /// The cache's share of the file, in percent.
    share: Percent = Percent(10);
    /// YCSB's mix of operations.
    mix: Mix = Mix::C;
    /// What the tenants of one memory do.
    experiment: Experiment = Experiment::Pair;
    /// The most bytes that are read ahead. 0: no read-ahead.
    ahead: Size = Size(0);
    /// The engine's policy.
    policy: Policy = Policy(PolicyName::default());
    /// The engine's write mode.
    mode: Mode = Mode(CacheMode::default());
    /// The machine whose NUMA distances are emulated.
    machine: Remote = Remote(MACHINES[0]);
    /// Which threads access which pages of emulated nodes.
    load: Load = Load::Near;
    /// Threads of each contestant.
    threads: Threads = Threads(1);
    /// What a program does, in the words of its driver.
    job: Job = Job(String::new());
    /// The limit on the memory of programs, besides what caches their files.
    programs: Size = Size(32 << 20);
}

impl Size {
    fn parse(text: &str) -> Result<Size, String> {
        octavo_sim::size::bytes(text).map(Size)
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Pattern, String> {
        let pattern = Pattern(text.into());
        // The number of pages does not matter: the line is parsed here so that an error is reported
        // with its line, before the run.
        octavo_sim::generate::parse(&pattern.over(1000, 1)).map_err(|error| error.to_string())?;
        Ok(pattern)
    }

    /// Returns the generator's line over `pages` pages, without an end.
    pub fn over(&self, pages: u64, seed: u64) -> String {
        self.line(pages, seed, i64::MAX as u64)
    }

    /// Returns the generator's line over `pages` pages, with `requests` accesses.
    pub fn line(&self, pages: u64, seed: u64, requests: u64) -> String {
        let text = if self.0 == "one" { "uniform:pages=1" } else { &self.0 };
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let with =
            if rest.contains("pages=") { text.into() } else { format!("{kind}:pages={{pages}},{rest}") };
        let line = format!("{with},seed={seed},requests={requests}");
        line.replace("{pages}", &pages.to_string()).replace(",,", ",")
    }
}

/// Types with one conversion to a value.
macro_rules! parameters {
    ($($kind:ident: |$from:ident| $value:expr;)*) => {
        $(impl Parameter for $kind {
            fn value(&self) -> Value {
                let $from = self;
                $value.into()
            }
        })*
    };
}

parameters! {
    DriverName: |driver| &*driver.0;
    Job: |job| &*job.0;
    Threads: |threads| threads.0;
    Count: |count| count.0;
    Percent: |percent| u64::from(percent.0);
    Policy: |policy| policy.0.name();
    Remote: |machine| machine.0.name;
    Mode: |mode| mode.0.name();
}

impl Parameter for Pattern {
    fn value(&self) -> Value {
        (&*self.0).into()
    }

    fn word(&self) -> String {
        self.0.split(':').next().unwrap_or_default().into()
    }
}

impl Parameter for Size {
    fn value(&self) -> Value {
        self.0.into()
    }

    fn word(&self) -> String {
        match self.0 {
            bytes if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 30) => format!("{}GiB", bytes >> 30),
            bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
            bytes => bytes.to_string(),
        }
    }
}

/// A number or a text that is not interpreted yet.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Scalar {
    Number(i64),
    Text(String),
}

/// Types that are read from a number or a text.
macro_rules! from_scalar {
    ($($kind:ident: $number:expr, $text:expr;)*) => {$(
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let parsed: Result<$kind, String> = match Scalar::deserialize(from)? {
                    Scalar::Number(number) => $number(number),
                    Scalar::Text(text) => $text(&*text),
                };
                parsed.map_err(de::Error::custom)
            }
        }
    )*};
}

from_scalar! {
    DriverName: |_| Err("a driver is a name".to_owned()), |name: &str| Ok(DriverName(name.into()));
    Job: |_| Err("a job is a word".to_owned()), |job: &str| Ok(Job(job.into()));
    Size: |bytes| u64::try_from(bytes).map(Size).map_err(|_| "a size is not negative".to_owned()), Size::parse;
    Pattern: |_| Err("a workload is a line of text".to_owned()), Pattern::parse;
    Threads: |count| positive(count).map(Threads), threads;
    Count: |count| positive(count).map(Count), |_: &str| Err("a count is a number".to_owned());
    Percent: percent, |_: &str| Err("a share is a number".to_owned());
    Policy: |_| Err("a policy is a name".to_owned()),
        |name| one_of(name, &PolicyName::ALL, PolicyName::name).map(Policy);
    Remote: |_| Err("a machine is a name".to_owned()),
        |name| one_of(name, &MACHINES, |machine| machine.name).map(Remote);
    Mode: |_| Err("a mode is a name".to_owned()),
        |name| one_of(name, &[CacheMode::Writethrough, CacheMode::Writeback], CacheMode::name).map(Mode);
}

/// The most threads, operations in flight or operations of a batch. More are probably a mistake in
/// the suite.
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
        _ => Err(format!("{share}: a share in percent is 0 to 100")),
    }
}

fn threads(text: &str) -> Result<Threads, String> {
    let times = text.strip_suffix('x').and_then(|times| times.parse::<f64>().ok());
    let times = times.filter(|times| *times > 0.0 && *times <= 64.0);
    let times = times.ok_or_else(|| {
        format!("\"{text}\": threads are a number, or a multiple of the processors such as \"2x\"")
    })?;
    Ok(Threads(((machine::cpus() as f64 * times) as usize).max(1)))
}

/// One value, or an array of values.
#[derive(Clone, Debug)]
pub(crate) struct Many<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ManyVisitor(PhantomData))
    }
}

struct ManyVisitor<T>(PhantomData<T>);

/// Reads one value of a basic type as a `T`.
macro_rules! visit {
    ($($visit:ident($from:ty) as $deserializer:ty;)*) => {
        $(fn $visit<E: de::Error>(self, value: $from) -> Result<Many<T>, E> {
            let from: $deserializer = value.into_deserializer();
            Ok(Many(vec![T::deserialize(from)?]))
        })*
    };
}

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
        match values.is_empty() {
            true => Err(de::Error::custom("an array without values stands for no case")),
            false => Ok(Many(values)),
        }
    }

    visit! {
        visit_i64(i64) as I64Deserializer<E>;
        visit_f64(f64) as F64Deserializer<E>;
        visit_bool(bool) as BoolDeserializer<E>;
        visit_str(&str) as StrDeserializer<'_, E>;
    }
}
