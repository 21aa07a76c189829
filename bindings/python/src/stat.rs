//! Statistics as dicts, with the names of the engine's fields.

use octavo::{CacheStat, MissCurve, ObjectStat, PartitionStat};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Makes a dict of the named fields of a struct.
macro_rules! dict {
    ($py:expr, $stat:expr; $($field:ident),+ $(,)?) => {{
        let dict = PyDict::new($py);
        $(dict.set_item(stringify!($field), &$stat.$field)?;)+
        dict
    }};
}
pub(crate) use dict;

/// The statistics of a cache.
pub fn of_cache<'py>(py: Python<'py>, stat: &CacheStat) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py, stat; memory_max_bytes, memory_charged_bytes, buffers_max_bytes, buffers_used_bytes,
        rings, queues, io_engine))
}

/// The statistics of a partition.
pub fn of_partition<'py>(py: Python<'py>, stat: &PartitionStat) -> PyResult<Bound<'py, PyDict>> {
    let dict = dict!(py, stat; name, policy, cache_mode, hits, misses, fills, bypasses, writebacks,
        writeback_ios, read_errors, write_errors, sync_errors, ghost_hits, ahead_used, ahead_wasted,
        resident_bytes, dirty_bytes, dirty_max_bytes, max_bytes, charged_bytes, requests_read,
        requests_write, requests_sync, read_bytes, written_bytes);
    dict.set_item("evictions", dict!(py, stat.evictions; capacity, resize, discard, write))?;
    Ok(dict)
}

/// The statistics of an object.
pub fn of_object<'py>(py: Python<'py>, stat: &ObjectStat) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py, stat; name, len_bytes, dirty_bytes, failed, writeback_error))
}

/// A miss curve; `octavo` makes arrays of its lists.
pub fn of_curve<'py>(py: Python<'py>, curve: &MissCurve) -> PyResult<Bound<'py, PyDict>> {
    let dict = dict!(py, curve; references, sampled, seen, rate);
    let (sizes, misses): (Vec<u64>, Vec<f64>) = curve.points.iter().copied().unzip();
    dict.set_item("pages", sizes)?;
    dict.set_item("misses", misses)?;
    Ok(dict)
}
