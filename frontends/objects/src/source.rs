//! One version of one object at its server: how its bytes are fetched, checked and tried again.
//! Not here: how the engine asks for them (`remote.rs`).
//!
//! Rules, which every answer passes before a byte of it becomes visible:
//!
//! - **O1** A fetch names the version that is cached (`If-Match`). An answer of another version
//!   ends it with `Changed`. If the version is not strong, it is never fetched again. A strong one
//!   may be: when the server has it again, its bytes are the same.
//! - **O2** The answer tells exactly the range that was asked for, and the size that is known.
//! - **O3** The body has exactly the bytes of the range: neither fewer nor more.
//! - **O4** An attempt that breaks O2 or O3, or that ends in an error which may pass, is repeated
//!   as a whole, after a pause that doubles, and not before the time that the server asked for
//!   (`Retry-After`). No answer continues another one's bytes.
//! - **O5** Time is bounded: for the next bytes by `patience`, for all attempts by `deadline`.
//! - **O6** A fetch runs on the core's own runtime. Whoever waits for it may leave: it goes on for
//!   the others.
//! - **O7** After a fetch failed for good, those that come within `FAILURE_LASTS` fail with the
//!   same error, so that many waiting readers do not ask one after the other.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep, timeout};

use crate::config::Usage;
use crate::error::{Error, ErrorKind};
use crate::origin::{Answer, Meta, Origin};
use crate::pauses::Pauses;
use crate::reading::silent;
use crate::shared::Shared;
use crate::stat::add;
use crate::tier::{BlockKey, ObjectKey, Tier};

/// How long fetches repeat a failure without a new attempt (O7).
const FAILURE_LASTS: Duration = Duration::from_secs(1);

/// Units of one request that are fetched at a time.
const UNITS_TOGETHER: usize = 8;

/// The error of a request whose time is over. `last` is that of its last attempt.
pub(crate) fn late(path: &str, deadline: Duration, last: Option<String>) -> Error {
    let reason = last.unwrap_or_else(|| "no answer".into());
    Error::new(ErrorKind::Unavailable, path, format!("gave up after {deadline:?}: {reason}"))
}

/// What went wrong with a version.
#[derive(Debug, Default)]
struct Failures {
    /// The last answer that told another version.
    changed: Option<Error>,
    /// The last failure of any kind.
    last: Option<(Instant, Error)>,
}

impl Failures {
    /// The last failure, if it is recent enough to be repeated (O7).
    fn recent(&self) -> Option<Error> {
        let (since, error) = self.last.as_ref()?;
        (since.elapsed() < FAILURE_LASTS).then(|| error.clone())
    }
}

/// Takes the bytes of a fetch: where they belong, counted from the start of the range, and the
/// bytes. A further attempt begins at 0 again.
type Sink<'s> = &'s mut (dyn FnMut(usize, &[u8]) + Send);

/// One version of one object.
pub(crate) struct Source {
    pub shared: Arc<Shared>,
    pub path: Arc<str>,
    pub meta: Meta,
    /// Names this version in the file tier.
    pub key: ObjectKey,
    /// The store with the credentials of the last reader.
    origin: Mutex<Arc<dyn Origin>>,
    failures: Mutex<Failures>,
    /// Nobody asks for this version again: its blocks do not go to the file tier.
    is_gone: AtomicBool,
}

impl fmt::Debug for Source {
    /// Shows no origin: that has credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("path", &self.path).field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl Source {
    pub fn new(
        shared: &Arc<Shared>,
        path: Arc<str>,
        meta: Meta,
        key: ObjectKey,
        origin: Arc<dyn Origin>,
    ) -> Arc<Source> {
        Arc::new(Source {
            shared: shared.clone(),
            path,
            meta,
            key,
            origin: Mutex::new(origin),
            failures: Mutex::default(),
            is_gone: AtomicBool::new(false),
        })
    }

    /// From now on, asks `origin`: the same store, with credentials that may be newer.
    pub fn use_origin(&self, origin: &Arc<dyn Origin>) {
        let mut present = self.origin.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&present, origin) {
            *present = origin.clone();
        }
    }

    fn origin(&self) -> Arc<dyn Origin> {
        self.origin.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of the last answer that told another version.
    pub fn change(&self) -> Option<Error> {
        self.failures().changed.clone()
    }

    /// Why a read failed.
    pub fn failure(&self) -> Option<Error> {
        let failures = self.failures();
        failures.changed.clone().or_else(|| failures.recent())
    }

    /// The failure that fetches repeat (O1, O7).
    fn repeated(&self) -> Option<Error> {
        let failures = self.failures();
        let for_ever = failures.changed.as_ref().filter(|_| !self.meta.version.is_strong());
        for_ever.cloned().or_else(|| failures.recent())
    }

    fn fail(&self, error: &Error) {
        let mut failures = self.failures();
        if error.kind() == ErrorKind::Changed {
            failures.changed = Some(error.clone());
        }
        failures.last = Some((Instant::now(), error.clone()));
        add(&self.shared.counters.failed, 1);
    }

    /// The file tier, if the blocks of this version may be there. It outlives the process, so it
    /// only gets versions that stand for the same bytes for all time.
    fn tier(&self) -> Option<&Arc<Tier>> {
        self.shared.tier.as_ref().filter(|_| self.meta.version.is_strong())
    }

    /// Brings the bytes of a range to `sink`: from the file tier, or else from the server.
    pub async fn bring(
        self: &Arc<Self>,
        range: Range<u64>,
        usage: Usage,
        sink: Sink<'_>,
    ) -> Result<(), Error> {
        if let Some(error) = self.repeated() {
            return Err(error);
        }
        // Read-ahead asks for several units at once. Each is a fetch of its own.
        let (start, sink) = (range.start, Mutex::new(sink));
        let units = stream::iter(self.units(range)).map(Ok);
        let brought = units.try_for_each_concurrent(UNITS_TOGETHER, |unit| {
            let (at, sink) = ((unit.start - start) as usize, &sink);
            async move {
                let put = &mut |after: usize, bytes: &[u8]| {
                    let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                    sink(at + after, bytes);
                };
                match self.tier() {
                    Some(tier) if usage != Usage::Bypass => self.bring_block(tier, unit, usage, put).await,
                    _ => self.fetch(unit, put).await,
                }
            }
        });
        brought.await.inspect_err(|error| self.fail(error))
    }

    /// Cuts a range at the bounds of units.
    pub fn units(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + Send + use<> {
        let unit = u64::from(self.shared.config.fill_bytes);
        let mut next = range.start;
        std::iter::from_fn(move || {
            let end = (next / unit * unit + unit).min(range.end);
            let piece = next..end;
            next = end;
            (piece.start < piece.end).then_some(piece)
        })
    }

    /// Returns the unit of a range that lies inside of one unit and is only a part of it.
    pub fn unit_of_part(&self, range: &Range<u64>) -> Option<u64> {
        let unit = u64::from(self.shared.config.fill_bytes);
        let whole = range.start / unit * unit..((range.start / unit + 1) * unit).min(self.meta.size);
        (range.end <= whole.end && *range != whole).then_some(range.start / unit)
    }

    /// Brings a part of a unit from its block in the file tier, which gets the block if it is not
    /// there.
    async fn bring_block(
        self: &Arc<Self>,
        tier: &Arc<Tier>,
        part: Range<u64>,
        usage: Usage,
        sink: Sink<'_>,
    ) -> Result<(), Error> {
        let block_bytes = u64::from(self.shared.config.fill_bytes);
        let block = part.start / block_bytes;
        let whole = block * block_bytes..((block + 1) * block_bytes).min(self.meta.size);
        // Bounds the memory of blocks, which is charged.
        let turn = self.shared.blocks.clone().acquire_owned().await.expect("never closed");
        let len = (whole.end - whole.start) as usize;
        let key = BlockKey { object: self.key, block, len: len as u32 };
        let bytes = match self.find_block(tier, &key).await {
            Some(bytes) => bytes,
            None if usage == Usage::Once => return self.fetch(part, sink).await,
            None => {
                let mut bytes = vec![0; len];
                let fill = &mut |at: usize, piece: &[u8]| bytes[at..at + piece.len()].copy_from_slice(piece);
                self.fetch(whole.clone(), fill).await?;
                let bytes = Bytes::from(bytes);
                self.keep_block(tier, key, bytes.clone(), turn);
                bytes
            }
        };
        sink(0, &bytes[(part.start - whole.start) as usize..(part.end - whole.start) as usize]);
        Ok(())
    }

    /// Returns a block that the file tier has. A disk that does not answer is as good as none.
    async fn find_block(&self, tier: &Arc<Tier>, key: &BlockKey) -> Option<Bytes> {
        let (tier, key) = (tier.clone(), key.clone());
        let found = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; key.len as usize];
            tier.get(&key, &mut bytes).map(|()| Bytes::from(bytes))
        });
        timeout(self.shared.config.patience, found).await.ok()?.ok()?
    }

    /// Gives a block to the file tier. The readers do not wait for that. The block's memory is
    /// charged until `turn` ends.
    fn keep_block(
        self: &Arc<Self>,
        tier: &Arc<Tier>,
        key: BlockKey,
        bytes: Bytes,
        turn: OwnedSemaphorePermit,
    ) {
        let (source, tier) = (self.clone(), tier.clone());
        tokio::task::spawn_blocking(move || {
            let is_gone = || source.is_gone.load(Ordering::SeqCst);
            if !is_gone() {
                tier.put(&key, &bytes);
            }
            // `forget_blocks` may have looked for the block before it was there.
            if is_gone() {
                tier.forget_block(&key);
            }
            drop(turn);
        });
    }

    /// Deletes the blocks of this version from the file tier: nobody asks for it again. Waits for
    /// the disk.
    pub fn forget_blocks(&self) {
        let Some(tier) = self.tier() else { return };
        self.is_gone.store(true, Ordering::SeqCst);
        tier.forget(&self.key, self.meta.size);
    }

    /// Fetches the bytes of a range from the server (O1 to O5).
    async fn fetch(&self, range: Range<u64>, sink: Sink<'_>) -> Result<(), Error> {
        let config = &self.shared.config;
        let mut pauses = Pauses::new(self.shared.next_seed(), config.deadline);
        let mut attempt = 0;
        let mut last = None;
        let attempts = async {
            loop {
                attempt += 1;
                let turn = self.shared.fills.acquire().await.expect("never closed");
                let error = match self.attempt(&range, sink).await {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                };
                drop(turn);
                self.shared.counters.note(&error);
                log::debug!("{}: attempt {attempt}: {error}", self.path);
                if !error.kind().may_pass() || attempt == config.attempts_max {
                    return Err(error.after(attempt));
                }
                last = Some(error.to_string());
                let pause = pauses.after(error)?;
                add(&self.shared.counters.retries, 1);
                sleep(pause).await;
            }
        };
        let ended = timeout(config.deadline, attempts).await;
        ended.unwrap_or_else(|_| Err(late(&self.path, config.deadline, last)))
    }

    async fn attempt(&self, range: &Range<u64>, sink: Sink<'_>) -> Result<(), Error> {
        let patience = self.shared.config.patience;
        let silent = |_| silent(&self.path, patience);
        add(&self.shared.counters.gets, 1);
        let origin = self.origin();
        let get = origin.get(&self.path, range.clone(), &self.meta.version);
        let Answer { meta, range: told, mut body } = timeout(patience, get).await.map_err(silent)??;
        // O1, O2.
        if !meta.version.is_same(&self.meta.version) {
            let text = format!("is now version {}, no longer {}", meta.version, self.meta.version);
            return Err(self.error(ErrorKind::Changed, text));
        }
        if told != *range || meta.size != self.meta.size {
            let text = format!(
                "asked for bytes {range:?} of {}, the answer says {told:?} of {}",
                self.meta.size, meta.size
            );
            return Err(self.error(ErrorKind::Wrong, text));
        }
        // O3.
        let len = (range.end - range.start) as usize;
        let mut at = 0;
        while let Some(piece) = timeout(patience, body.next()).await.map_err(silent)? {
            let piece = piece?;
            if piece.len() > len - at {
                let text = format!("asked for {len} bytes, the body has more");
                return Err(self.error(ErrorKind::Wrong, text));
            }
            sink(at, &piece);
            at += piece.len();
        }
        if at < len {
            let text = format!("asked for {len} bytes, the body ended after {at}");
            return Err(self.error(ErrorKind::Wrong, text));
        }
        add(&self.shared.counters.fetched_bytes, len as u64);
        Ok(())
    }

    fn error(&self, kind: ErrorKind, text: String) -> Error {
        Error::new(kind, &self.path, text)
    }

    /// Returns the bytes of a range without keeping them in memory. `usage` says whether they may
    /// come from the file tier. Runs to its end on the core's runtime (O6).
    pub async fn pass(self: &Arc<Self>, range: Range<u64>, usage: Usage) -> Result<Bytes, Error> {
        let source = self.clone();
        let task = self.shared.handle().spawn(async move {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            let fill = &mut |at: usize, piece: &[u8]| bytes[at..at + piece.len()].copy_from_slice(piece);
            source.bring(range, usage, fill).await?;
            Ok(Bytes::from(bytes))
        });
        task.await.unwrap_or_else(|_| Err(self.error(ErrorKind::Unavailable, "the cache was closed".into())))
    }
}
