//! Random reads and writes of several tasks, behind a server that lies at random, agree with a
//! naive twin: the bytes are those of the version that the answer names, and that version was
//! present at some time during the call.
//!
//! `OCTAVO_STEPS` sets the number of operations, `OCTAVO_SEED` repeats a run.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::twin::{Life, Tick, Twin};
use super::*;
use crate::cached::{Hint, Usage};
use object_store::{Error, GetOptions, GetRange, ObjectMeta};
use octavo_s3_stub::{Lie, Operation};
use tokio::task::JoinSet;

const TASKS: u64 = 8;
const OBJECTS: usize = 16;

/// Lengths of objects: none, one byte, and the bounds of units.
const LENS: [u64; 9] = [0, 1, 5000, UNIT - 1, UNIT, UNIT + 1, 100_000, 4 * UNIT, 500_000];

/// A lie that takes longer than the patience of the cache.
const STALL: Duration = Duration::from_secs(60);

fn steps(default: u64) -> u64 {
    let steps = std::env::var("OCTAVO_STEPS").ok();
    steps.map_or(default, |steps| steps.parse().expect("OCTAVO_STEPS is a number"))
}

fn path_of(object: usize) -> Path {
    Path::from(format!("dir-{}/object-{object}", object % 3))
}

/// The lies and how often the server tells them. A quarter of all answers is wrong.
fn lies() -> Vec<(Lie, f64)> {
    let each = [
        Lie::ClosedEarly,
        Lie::Short,
        Lie::Long,
        Lie::OtherRange,
        Lie::WholeObject,
        Lie::IfMatchIgnored,
        Lie::OldVersion,
        Lie::OtherTag,
        Lie::Status { code: 500, retry_after_s: None },
        Lie::Status { code: 503, retry_after_s: Some(60) },
        Lie::ResetBefore,
        Lie::ResetInside,
    ];
    let mut lies: Vec<(Lie, f64)> = each.into_iter().map(|lie| (lie, 0.02)).collect();
    lies.extend([(Lie::StallBefore(STALL), 0.005), (Lie::StallInside(STALL), 0.005)]);
    lies
}

struct Run {
    server: Server,
    twin: Arc<Twin>,
    /// Whether the server may lie now.
    lies: bool,
}

/// An answer that is wrong, with what it is about.
type Verdict = std::result::Result<(), String>;

#[test]
fn random_operations_agree_with_a_naive_twin_behind_a_server_that_lies() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    octavo_random::for_seeds(1..2, |seed| runtime.block_on(run(seed, steps(2000))));
}

async fn run(seed: u64, steps: u64) {
    // Room for a part of the objects only.
    let server = Server::with_memory(8 << 20, ObjectsConfig { attempts_max: 4, ..impatient() });
    let twin = Arc::new(Twin::new(OBJECTS, seed));
    let (told, twin_told) = (Lies::random(seed, lies()), twin.clone());
    server.stub.set_lies(Lies::with(move |asked| {
        let lie = told.tell(asked);
        if lie == Some(Lie::OldVersion) && asked.operation == Operation::Get {
            let number = asked.path.rsplit_once('-').expect("a path of this test").1;
            twin_told.note_old(number.parse().expect("a number"));
        }
        lie
    }));
    let mut run = Arc::new(Run { server, twin, lies: true });
    drive(&run, seed, steps).await;
    let stat = run.server.objects.stat();
    println!("seed {seed}: {stat:?}");
    println!("{}", run.server.stub.counts().to_string().split("path ").next().unwrap());
    for (name, count) in [
        ("wrong", stat.wrong),
        ("unavailable", stat.unavailable),
        ("changed", stat.changed),
        ("retries", stat.retries),
        ("hit_bytes", stat.hit_bytes),
        ("passed_bytes", stat.passed_bytes),
    ] {
        assert!(count > 0, "{name} is 0: {stat:?}");
    }
    // The server tells the truth from now on. Failures are repeated for a second.
    run.server.stub.set_lies(Lies::none());
    tokio::time::sleep(Duration::from_millis(1200)).await;
    Arc::get_mut(&mut run).expect("all tasks have ended").lies = false;
    for object in 0..OBJECTS {
        run.read_present(object).await;
    }
    drive(&run, seed + 1, steps / 10).await;
}

/// Runs operations of several tasks.
async fn drive(run: &Arc<Run>, seed: u64, steps: u64) {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let run = run.clone();
        tasks.spawn(async move {
            let mut random = Random::new(seed ^ (task << 48));
            for step in 0..steps.div_ceil(TASKS) {
                let start = Instant::now();
                if let Err(what) = run.step(&mut random).await {
                    panic!("task {task}, step {step}: {what}");
                }
                assert!(start.elapsed() < ANSWER_MAX, "task {task}, step {step}: {:?}", start.elapsed());
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

impl Run {
    async fn step(&self, random: &mut Random) -> Verdict {
        let object = random.below(OBJECTS as u64) as usize;
        match random.below(20) {
            0 | 1 => self.put(object, random).await,
            2 => self.delete(object, random).await,
            3 | 4 => self.head(object).await,
            5..10 => self.get_ranges(object, random).await,
            _ => self.get(object, random).await,
        }
    }

    /// Half of the writes come from elsewhere, past the cache.
    fn writer(&self, random: &mut Random) -> Arc<dyn ObjectStore> {
        match random.coin() {
            true => Arc::new(self.server.store.clone()),
            false => self.server.client.clone(),
        }
    }

    async fn put(&self, object: usize, random: &mut Random) -> Verdict {
        let (writer, path) = (self.writer(random), path_of(object));
        let len = random.pick(&LENS);
        let put =
            async |bytes: Bytes| writer.put(&path, bytes.into()).await.expect("no lies about writes").e_tag;
        self.twin.write(object, Some(len), put).await;
        Ok(())
    }

    async fn delete(&self, object: usize, random: &mut Random) -> Verdict {
        let (writer, path) = (self.writer(random), path_of(object));
        let delete = async |_| {
            writer.delete(&path).await.expect("no lies about removals");
            None
        };
        self.twin.write(object, None, delete).await;
        Ok(())
    }

    async fn head(&self, object: usize) -> Verdict {
        let since = self.twin.now();
        match self.server.store.head(&path_of(object)).await {
            Ok(meta) => self.check_meta(object, &meta, since).await.map(drop),
            Err(error) => self.check_error(object, &error, since, None),
        }
    }

    async fn get(&self, object: usize, random: &mut Random) -> Verdict {
        let most = random.pick(&[100, 70_000, 300_000]);
        let (start, len) = (random.below(510_000), 1 + random.below(most));
        let wanted = match random.below(6) {
            0 => Some(GetRange::Suffix(len)),
            1 => Some(GetRange::Offset(start)),
            2 | 3 => None,
            _ => Some(GetRange::Bounded(start..start + len)),
        };
        let usage = random.pick(&[
            Usage::Normal,
            Usage::Normal,
            Usage::Normal,
            Usage::Once,
            Usage::Pin,
            Usage::Bypass,
        ]);
        let mut options = GetOptions { range: wanted.clone(), ..GetOptions::default() };
        options.extensions.insert(Hint::from(usage));
        let since = self.twin.now();
        let got = match self.server.store.get_opts(&path_of(object), options).await {
            Ok(got) => got,
            Err(error) => return self.check_error(object, &error, since, wanted.as_ref()),
        };
        let (meta, range) = (got.meta.clone(), got.range.clone());
        let Some(life) = self.check_meta(object, &meta, since).await? else { return Ok(()) };
        let expected = match &wanted {
            None => 0..meta.size,
            Some(wanted) => wanted.as_range(meta.size).map_err(|error| format!("{wanted:?}: {error}"))?,
        };
        if range != expected {
            return Err(format!("{wanted:?} of {} bytes came as {range:?}", meta.size));
        }
        if random.one_in(20) {
            // The reader leaves before it has all bytes.
            return Ok(());
        }
        match got.bytes().await {
            Ok(bytes) if life.has(range.clone(), &bytes) => Ok(()),
            Ok(bytes) => Err(format!("{} wrong bytes for {range:?} of {meta:?}, {usage:?}", bytes.len())),
            // The object has changed meanwhile.
            Err(Error::Precondition { .. }) => Ok(()),
            Err(error) => self.check_error(object, &error, since, None),
        }
    }

    async fn get_ranges(&self, object: usize, random: &mut Random) -> Verdict {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for _ in 0..=random.below(5) {
            let (within, most) = (random.pick(&[1000, 100_000, 500_000]), random.pick(&[10, 1000, 100_000]));
            let start = random.below(within);
            ranges.push(start..start + 1 + random.below(most));
        }
        let since = self.twin.now();
        let parts = match self.server.store.get_ranges(&path_of(object), &ranges).await {
            Ok(parts) => parts,
            Err(error) => {
                let last = ranges.iter().max_by_key(|range| range.start).expect("at least one").clone();
                return self.check_error(object, &error, since, Some(&last.into()));
            }
        };
        let until = self.twin.now();
        let is_all = |life: &Life| {
            let clipped = |range: &Range<u64>| range.start..range.end.min(life.len.unwrap_or_default());
            parts.len() == ranges.len()
                && ranges.iter().zip(&parts).all(|(range, part)| {
                    clipped(range).start < clipped(range).end && life.has(clipped(range), part)
                })
        };
        let mut lives = self.twin.lives(object, since).into_iter();
        match lives.any(|life| self.twin.was_present(object, &life, since, until) && is_all(&life)) {
            true => Ok(()),
            false => Err(format!("{ranges:?} of {object} are of no version that was present")),
        }
    }

    /// Checks that the version of an answer was present at some time since `since`. Returns it, or
    /// `None` if the server told a tag that no version ever had.
    async fn check_meta(
        &self,
        object: usize,
        meta: &ObjectMeta,
        since: Tick,
    ) -> std::result::Result<Option<Life>, String> {
        let until = self.twin.now();
        let tag = meta.e_tag.clone().unwrap_or_default();
        let Some(life) = self.twin.life_of(object, &tag).await else {
            let lied = self.lies && tag.starts_with("\"ffff");
            return if lied { Ok(None) } else { Err(format!("{meta:?} is no version of {object}")) };
        };
        if life.len != Some(meta.size) {
            return Err(format!("{meta:?} has not the size of {life:?}"));
        }
        if !self.twin.was_present(object, &life, since, until) {
            return Err(format!("{meta:?} was not present between {since} and {until}: {life:?}"));
        }
        Ok(Some(life))
    }

    /// Checks that an error is true, or may be one of a server that lies.
    fn check_error(&self, object: usize, error: &Error, since: Tick, wanted: Option<&GetRange>) -> Verdict {
        let lives = self.twin.lives(object, since);
        let is_true = match error {
            Error::NotFound { .. } => lives.iter().any(|life| life.len.is_none()),
            Error::Precondition { .. } => lives.len() > 1,
            _ => {
                self.lies
                    || wanted.is_some_and(|wanted| {
                        lives.iter().any(|life| life.len.is_none_or(|len| wanted.as_range(len).is_err()))
                    })
            }
        };
        match is_true || self.lies && !matches!(error, Error::NotFound { .. }) {
            true => Ok(()),
            false => Err(format!("{error} ({error:?}) is not true of {lives:?}")),
        }
    }

    /// Reads the present version, to which nothing happens.
    async fn read_present(&self, object: usize) {
        let life = self.twin.present(object);
        let read = self.server.store.get(&path_of(object)).await;
        let Some(len) = life.len else {
            assert!(matches!(read, Err(Error::NotFound { .. })), "{object}: {read:?}");
            return;
        };
        let bytes = read.unwrap().bytes().await.unwrap();
        assert!(life.has(0..len, &bytes), "{object}: {} bytes of {life:?}", bytes.len());
    }
}
