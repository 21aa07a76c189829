//! [`Fetcher`]: what asks servers for objects, on threads of its own.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use octavo::disk::Store;
use octavo::{Cache, Charge};
use sha2::{Digest, Sha256};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::config::ObjectsConfig;
use crate::error::{Error, ErrorKind};
use crate::origin::{Meta, Origin};
use crate::pauses::Pauses;
use crate::reading::{Reading, silent};
use crate::remote;
use crate::shared::Shared;
use crate::source::{Source, late};
use crate::stat::{Counters, ObjectsStat, add};
use crate::tier::{ObjectKey, Tier};

/// Asks servers for objects: bounds what is in flight, checks every answer, tries again, and keeps
/// blocks in the file tier. Cheap to clone.
///
/// [`Objects`](crate::Objects) has one. Front ends that serve single objects as disks or files need
/// nothing else: [`store`](Fetcher::store) makes an object a store of the engine.
#[derive(Clone, Debug)]
pub struct Fetcher(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    cache: Cache,
    /// The memory of the file tier's index, and of blocks on their way.
    _tier_charge: Option<Charge>,
    /// `None` only in `drop`.
    runtime: Mutex<Option<Runtime>>,
}

impl Fetcher {
    /// Starts the threads. `cache` is charged for the file tier's memory.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a setting that cannot be; [`ErrorKind::Engine`] if there is
    /// no memory left for the file tier.
    pub fn new(cache: &Cache, config: ObjectsConfig) -> Result<Fetcher, Error> {
        config.validate()?;
        let wrong = |text: String| Error::new(ErrorKind::Config, "", text);
        let tier = match &config.tier {
            Some(tier) => Some(Arc::new(Tier::open(tier)?)),
            None => None,
        };
        let (blocks, tier_charge) = match &tier {
            Some(tier) => {
                let charged = blocks_of(cache, &config, tier);
                let (blocks, charge) = charged.map_err(|error| Error::engine("", &error))?;
                (blocks, Some(charge))
            }
            None => (1, None),
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(config.threads)
            .thread_name("octavo-objects")
            .enable_all()
            .build()
            .map_err(|error| wrong(format!("cannot start threads: {error}")))?;
        let shared = Arc::new(Shared {
            counters: Counters::default(),
            fills: Semaphore::new(config.fills_max),
            blocks: Arc::new(Semaphore::new(blocks)),
            tier,
            pins_max_bytes: config.pins_max_bytes.unwrap_or(cache.stat().memory_max_bytes / 16),
            seed: seed(),
            requests: AtomicU64::new(0),
            handle: runtime.handle().clone(),
            config,
        });
        let cache = cache.clone();
        let runtime = Mutex::new(Some(runtime));
        Ok(Fetcher(Arc::new(Inner { shared, cache, _tier_charge: tier_charge, runtime })))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Returns what was counted. Figures of pages are 0: those of a store are its object's.
    pub fn stat(&self) -> ObjectsStat {
        let mut stat = self.0.shared.counters.read();
        stat.tier = self.0.shared.tier.as_ref().map(|tier| tier.stat());
        stat
    }

    /// Returns the time after which readers get an error.
    pub fn deadline(&self) -> Duration {
        self.0.shared.config.deadline
    }

    /// Runs a future on the fetcher's threads, and waits for it: not for async tasks.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.shared.handle().block_on(future)
    }

    /// Asks a server for the size and version of an object.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] and the other errors of the server; [`ErrorKind::Unavailable`] after
    /// several attempts.
    pub async fn head(&self, origin: &Arc<dyn Origin>, path: &str) -> Result<Meta, Error> {
        let (origin, asked): (_, Arc<str>) = (origin.clone(), path.into());
        let ask = move || {
            let (origin, path) = (origin.clone(), asked.clone());
            async move { origin.head(&path).await }
        };
        self.ask(path, ask).await
    }

    /// Asks a server something with a short answer, on the fetcher's threads, in bounded time, and
    /// again if the error may pass. `path` is for messages.
    ///
    /// # Errors
    /// Those of `ask`; [`ErrorKind::Unavailable`] after several attempts.
    async fn ask<T, F>(&self, path: &str, mut ask: impl FnMut() -> F + Send + 'static) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (shared, path): (_, Arc<str>) = (self.0.shared.clone(), path.into());
        let closed = Error::new(ErrorKind::Unavailable, &path, "the cache was closed");
        let task = self.0.shared.handle().spawn(async move {
            let patience = shared.config.patience;
            let asked = path.clone();
            let attempt = || {
                let (told, path) = (timeout(patience, ask()), path.clone());
                async move { told.await.unwrap_or_else(|_| Err(silent(&path, patience))) }
            };
            attempts(&shared, &asked, attempt).await
        });
        task.await.unwrap_or(Err(closed))
    }

    /// Asks a server for an answer of some length, such as one page of a listing, on the fetcher's
    /// threads, in bounded time, and again if the error may pass. `path` is for messages. `ask`
    /// notes in its [`Reading`] what it reads: the server may take its time as long as it sends
    /// something within [`patience`](ObjectsConfig::patience). If the future that this function
    /// returns is dropped, the request ends.
    ///
    /// # Errors
    /// Those of `ask`; [`ErrorKind::Unavailable`] after several attempts.
    pub async fn read<T, F>(
        &self,
        path: &str,
        mut ask: impl FnMut(Reading) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (shared, path): (_, Arc<str>) = (self.0.shared.clone(), path.into());
        let cache = self.0.cache.clone();
        let closed = Error::new(ErrorKind::Unavailable, &path, "the cache was closed");
        let mut task = JoinSet::new();
        let work = async move {
            let patience = shared.config.patience;
            let asked = path.clone();
            let attempt = || {
                let reading = Reading::new(&cache, &path);
                let answer = ask(reading.clone());
                async move { reading.patiently(patience, answer).await }
            };
            attempts(&shared, &asked, attempt).await
        };
        task.spawn_on(work, self.0.shared.handle());
        task.join_next().await.and_then(Result::ok).unwrap_or(Err(closed))
    }

    /// Waits for requests that belong together, such as all pages of a listing, for
    /// [`deadline`](ObjectsConfig::deadline) at most. `path` is for messages.
    ///
    /// # Errors
    /// Those of `work`; [`ErrorKind::Unavailable`] after the deadline.
    pub async fn within_deadline<T>(
        &self,
        path: &str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let deadline = self.0.shared.config.deadline;
        timeout(deadline, work).await.unwrap_or_else(|_| Err(late(path, deadline, None)))
    }

    /// Charges memory to the cache. `what` names its use in errors, `path` the object.
    ///
    /// # Errors
    /// [`ErrorKind::Engine`] if the cache has no memory left.
    pub fn charge(&self, path: &str, bytes: u64, what: &str) -> Result<Charge, Error> {
        self.0.cache.charge(bytes, what).map_err(|error| Error::engine(path, &error))
    }

    /// Counts keys of listings that cannot be names of files.
    pub fn note_left_out(&self, keys: u64) {
        add(&self.0.shared.counters.keys_left_out, keys);
    }

    /// Returns a version of an object as a read-only store of the engine, without asking the
    /// server. If the object changes, reads of the store fail: the new version is another store.
    /// `scope` names the server and the credentials, as in
    /// [`Objects::scope`](crate::Objects::scope); `name` is the store's name in messages.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the version is not known.
    pub fn store(
        &self,
        name: &str,
        scope: &str,
        origin: &Arc<dyn Origin>,
        path: &str,
        meta: Meta,
    ) -> Result<Store, Error> {
        meta.must_be_known(path)?;
        let id = object_key(scope, path, &meta);
        remote::store(&Source::new(&self.0.shared, path.into(), meta, id, origin.clone()), name)
    }
}

impl Drop for Inner {
    /// Requests in flight end with errors. Waits for nothing: a thread of the runtime may be the
    /// one that drops the last handle.
    fn drop(&mut self) {
        let runtime = self.runtime.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}

/// Repeats `attempt` until it succeeds, within the limits of the settings.
async fn attempts<T, F>(shared: &Shared, path: &str, mut attempt: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let config = &shared.config;
    let mut pauses = Pauses::new(shared.next_seed(), config.deadline);
    let mut number = 1;
    let mut last = None;
    let all = async {
        loop {
            add(&shared.counters.heads, 1);
            let error = match attempt().await {
                Ok(told) => return Ok(told),
                Err(error) => error,
            };
            shared.counters.note(&error);
            log::debug!("{path}: attempt {number}: {error}");
            if !error.kind().may_pass() || number == config.attempts_max {
                return Err(error.after(number));
            }
            last = Some(error.to_string());
            let pause = pauses.after(error)?;
            add(&shared.counters.retries, 1);
            sleep(pause).await;
            number += 1;
        }
    };
    timeout(config.deadline, all).await.unwrap_or_else(|_| Err(late(path, config.deadline, last)))
}

/// Differs between processes, also where each has the same number, as in containers: their pauses
/// between attempts must differ.
fn seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 ^ u64::from(std::process::id())
}

/// Charges the memory of blocks on their way through the file tier, and its index. Returns how many
/// there may be.
fn blocks_of(cache: &Cache, config: &ObjectsConfig, tier: &Tier) -> Result<(usize, Charge), octavo::Error> {
    let mut charge = cache.charge(tier.memory_bytes(), "the index of a file tier")?;
    let bytes = |blocks: usize| tier.memory_bytes() + blocks as u64 * u64::from(config.fill_bytes);
    let mut blocks = config.fills_max.min(32);
    while blocks > 2 && charge.resize(bytes(blocks)).is_err() {
        blocks /= 2;
    }
    charge.resize(bytes(blocks))?;
    Ok((blocks, charge))
}

/// The name of a version of an object in the file tier: no other version of any object of another
/// scope has it.
pub(crate) fn object_key(scope: &str, path: &str, meta: &Meta) -> ObjectKey {
    let mut bytes = Vec::new();
    for part in [scope, path] {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes.extend_from_slice(&meta.size.to_le_bytes());
    meta.version.write_to(&mut bytes);
    ObjectKey(Sha256::digest(&bytes).into())
}
