//! Caches and partitions inside the process.
//!
//! Not here: objects (`object.rs`), stores whose bytes come from Python (`fetch.rs`).

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use octavo::disk::{OpenOptions, Process, Store};
use octavo::{CacheConfig, CacheMode, Error, PartitionConfig, PolicyName};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{Failure, Result, config};
use crate::fetch::{Raised, Source};
use crate::live::{Live, refuse_pickle, warn_unclosed};
use crate::object::Object;
use crate::size::Size;
use crate::stat;
use crate::wait::wait;

/// A cache with a memory limit, for the partitions of one process.
#[pyclass(frozen, subclass, weakref, module = "octavo")]
pub struct Cache {
    /// None after `close`. Locked with the GIL held.
    live: Mutex<Option<Arc<Live>>>,
    process: Process,
}

#[pymethods]
impl Cache {
    #[new]
    #[pyo3(signature = (memory_max=Size(64 << 20), *, page_bytes=Size(4096), buffers_max=None, background=true))]
    fn new(
        py: Python<'_>,
        memory_max: Size,
        page_bytes: Size,
        buffers_max: Option<Size>,
        background: bool,
    ) -> Result<Cache> {
        let page_bytes = page_bytes_of(page_bytes)?;
        let config = CacheConfig {
            memory_max_bytes: memory_max.0,
            page_bytes,
            buffers_max_bytes: buffers_max.map(|size| size.0),
            background,
            ..CacheConfig::default()
        };
        let cache = py.detach(|| octavo::Cache::new(config))?;
        Ok(Cache { live: Mutex::new(Some(Arc::new(Live::new(cache)))), process: Process::this() })
    }

    /// Creates a partition.
    #[pyo3(signature = (name, *, mode="writethrough", policy=None, page_bytes=None, max_bytes=None,
        min_bytes=Size(0), read_ahead_max_bytes=Size(0)))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn partition(
        &self,
        py: Python<'_>,
        name: &str,
        mode: &str,
        policy: Option<&str>,
        page_bytes: Option<Size>,
        max_bytes: Option<Size>,
        min_bytes: Size,
        read_ahead_max_bytes: Size,
    ) -> Result<Partition> {
        let config = PartitionConfig {
            cache_mode: mode_of(mode)?,
            policy: policy.map_or(Ok(PolicyName::default()), policy_of)?,
            page_bytes: page_bytes.map(page_bytes_of).transpose()?,
            max_bytes: max_bytes.map(|size| size.0),
            min_bytes: min_bytes.0,
            read_ahead_max_bytes: read_ahead_max_bytes.0,
            ..PartitionConfig::new(name)
        };
        let live = self.live()?;
        let inner = py.detach(|| live.cache().partition(config))?;
        Ok(Partition { inner, live })
    }

    /// The partitions.
    fn partitions(&self) -> Result<Vec<Partition>> {
        let live = self.live()?;
        let all = live.cache().partitions();
        Ok(all.into_iter().map(|inner| Partition { inner, live: live.clone() }).collect())
    }

    /// Closes the objects of a partition, and removes it.
    fn remove_partition(&self, py: Python<'_>, name: &str) -> Result<()> {
        let live = self.live()?;
        let name = name.to_owned();
        Ok(wait(py, &live.left_behind.clone(), move || live.cache().remove_partition(&name))??)
    }

    /// Makes all acknowledged writes durable.
    fn sync(&self, py: Python<'_>) -> Result<()> {
        sync(py, self.live()?)
    }

    fn stat<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let live = self.live()?;
        let (stat, partitions) = py.detach(|| {
            let all = live.cache().partitions();
            (live.cache().stat(), all.iter().map(|one| one.stat()).collect::<Vec<_>>())
        });
        let dict = stat::of_cache(py, &stat)?;
        let partitions = partitions.iter().map(|stat| stat::of_partition(py, stat));
        dict.set_item("partitions", partitions.collect::<PyResult<Vec<_>>>()?)?;
        Ok(dict)
    }

    /// Syncs and closes all objects, and ends the cache. If a sync fails, the cache stays open.
    fn close(&self, py: Python<'_>) -> Result<()> {
        if !self.process.is_this() {
            return Ok(());
        }
        let Some(live) = self.lock().clone() else { return Ok(()) };
        let close = move || {
            let all = live.cache().partitions();
            all.iter().try_for_each(|one| live.cache().remove_partition(one.name()))
        };
        let count = self.live()?.left_behind.clone();
        wait(py, &count, close)??;
        *self.lock() = None;
        Ok(())
    }

    /// Closes the cache at the end of the interpreter. What a signal has left behind is not waited
    /// for.
    fn _end(&self, py: Python<'_>) -> Result<()> {
        let Ok(live) = self.live() else { return Ok(()) };
        if !live.left_behind.is_any() {
            return self.close(py);
        }
        sync(py, live)?;
        *self.lock() = None;
        Ok(())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.lock().is_none()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> Result<()> {
        self.close(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        refuse_pickle("cache")
    }
}

impl Cache {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> Result<Arc<Live>> {
        if !self.process.is_this() {
            return Err(Error::Forked.into());
        }
        self.lock().clone().ok_or_else(|| Error::Closed { object: "the cache".into() }.into())
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if self.process.is_this() && self.lock().is_some() {
            warn_unclosed("<octavo.Cache>");
        }
    }
}

/// Makes all acknowledged writes of a cache durable.
fn sync(py: Python<'_>, live: Arc<Live>) -> Result<()> {
    let count = live.left_behind.clone();
    let sync = move || live.cache().partitions().iter().map(|one| one.sync()).fold(Ok(()), Result::and);
    Ok(wait(py, &count, sync)??)
}

/// A part of a cache with its own size, policy and write mode.
#[pyclass(frozen, module = "octavo")]
pub struct Partition {
    inner: octavo::Partition,
    live: Arc<Live>,
}

#[pymethods]
impl Partition {
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    #[getter]
    fn page_bytes(&self) -> u64 {
        self.inner.page_bytes()
    }

    /// Opens a file or block device.
    #[pyo3(signature = (path, *, name=None, read_only=false, direct=true, lock=true, create_bytes=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn open(
        &self,
        py: Python<'_>,
        path: PathBuf,
        name: Option<&str>,
        read_only: bool,
        direct: bool,
        lock: bool,
        create_bytes: Option<Size>,
    ) -> Result<Object> {
        let create_len_bytes = create_bytes.map(|size| size.0);
        let options = OpenOptions { read_only, direct, lock, create_len_bytes };
        self.open_store(py, name, None, move || Ok(Store::open(&path, &options)?))
    }

    /// Opens a store of zeros that lives in memory.
    fn open_memory(&self, py: Python<'_>, name: &str, size: Size) -> Result<Object> {
        let store = name.to_owned();
        self.open_store(py, Some(name), None, move || Ok(Store::memory(&store, size.0)))
    }

    /// Opens a read-only store of `size` bytes that `fetch(offset, length)` returns.
    #[pyo3(signature = (name, size, fetch))]
    fn open_source(&self, py: Python<'_>, name: &str, size: Size, fetch: Py<PyAny>) -> Result<Object> {
        let desk = self.live.fetchers.desk(&self.live.left_behind)?;
        let raised = Arc::new(Raised::default());
        let source = Source::new(desk, size.0, fetch, raised.clone());
        let store = name.to_owned();
        self.open_store(py, Some(name), Some(raised), move || Ok(Store::from_backend(&store, source)?))
    }

    /// Makes all acknowledged writes durable.
    fn sync(&self, py: Python<'_>) -> Result<()> {
        Ok(self.wait(py, |partition| partition.sync())??)
    }

    /// Writes dirty pages back, and evicts all pages.
    fn evict(&self, py: Python<'_>) -> Result<()> {
        Ok(self.wait(py, |partition| partition.evict())??)
    }

    /// Changes the size, and returns the bytes that the partition then has.
    fn resize(&self, py: Python<'_>, max_bytes: Size) -> Result<u64> {
        Ok(self.wait(py, move |partition| partition.resize(max_bytes.0))??)
    }

    fn set_policy(&self, py: Python<'_>, policy: &str) -> Result<()> {
        let policy = policy_of(policy)?;
        Ok(py.detach(|| self.inner.set_policy(policy))?)
    }

    fn stat<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let stat = py.detach(|| self.inner.stat());
        Ok(stat::of_partition(py, &stat)?)
    }

    /// Returns the misses at other sizes as arrays, or None until the cache has seen enough.
    fn miss_curve<'py>(&self, py: Python<'py>) -> Result<Option<Bound<'py, PyAny>>> {
        let Some(curve) = py.detach(|| self.inner.miss_curve()) else { return Ok(None) };
        let lists = stat::of_curve(py, &curve)?;
        Ok(Some(py.import("octavo.analysis")?.getattr("_arrays")?.call1((lists,))?))
    }

    fn __reduce__(&self) -> PyResult<()> {
        refuse_pickle("partition")
    }
}

impl Partition {
    fn open_store(
        &self,
        py: Python<'_>,
        name: Option<&str>,
        raised: Option<Arc<Raised>>,
        store: impl FnOnce() -> Result<Store> + Send + 'static,
    ) -> Result<Object> {
        let name = name.map(str::to_owned);
        let open = move |partition: octavo::Partition| {
            let store = store()?;
            let name = visible(name.as_deref().unwrap_or(store.name()));
            Ok::<_, Failure>(partition.open(store, &name)?)
        };
        Ok(Object::new(self.wait(py, open)??, self.live.clone(), raised))
    }

    /// Does work that may wait.
    fn wait<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(octavo::Partition) -> T + Send + 'static,
    ) -> Result<T> {
        let partition = self.inner.clone();
        wait(py, &self.live.left_behind, move || work(partition))
    }
}

/// Makes a name of an object of a path: what a name cannot have becomes `?`, and the last 60 levels
/// stay.
fn visible(path: &str) -> String {
    let shown: String = path.chars().map(|c| if octavo::is_visible(c) { c } else { '?' }).collect();
    let start = shown.rmatch_indices('/').nth(60).map_or(0, |(at, _)| at + 1);
    shown[start..].trim().to_owned()
}

fn page_bytes_of(size: Size) -> Result<u32> {
    size.0.try_into().map_err(|_| config(format!("page_bytes is {}: at most 1048576 is possible", size.0)))
}

fn mode_of(name: &str) -> Result<CacheMode> {
    let all = [CacheMode::Writethrough, CacheMode::Writeback];
    let found = all.into_iter().find(|mode| mode.name() == name);
    found.ok_or_else(|| config(format!("mode is {name:?}: \"writethrough\" or \"writeback\" is needed")))
}

fn policy_of(name: &str) -> Result<PolicyName> {
    name.parse().map_err(|unknown| config(format!("{unknown}")))
}
