"""A page cache in user space.

`Cache` holds pages of files in this process. `attach` opens an export of a running server, whose
cache many processes share. `OctavoFile` makes either a file object. `simulate` and `mrc` tell what
a cache would do with a trace. `octavo.filesystem` is a file system for fsspec.
"""

import atexit as _atexit
import os as _os
import warnings as _warnings
import weakref as _weakref

from octavo import _octavo
from octavo._errors import (
    ClosedError,
    ConfigError,
    Error,
    ForkedError,
    IoError,
    NoMemoryError,
    PastEndError,
    ReadOnlyError,
)
from octavo._octavo import Object, Partition, Pin, Remote, bytes_of, exports, policies
from octavo.analysis import mrc, simulate
from octavo.control import Server
from octavo.file import OctavoFile

__all__ = [
    "Cache",
    "ClosedError",
    "ConfigError",
    "Error",
    "ForkedError",
    "IoError",
    "NoMemoryError",
    "Object",
    "OctavoFile",
    "Partition",
    "PastEndError",
    "Pin",
    "ReadOnlyError",
    "Remote",
    "Server",
    "attach",
    "bytes_of",
    "exports",
    "mrc",
    "policies",
    "simulate",
]

# Caches that were not closed are closed at the end, while Python can still serve their sources.
_caches: _weakref.WeakSet = _weakref.WeakSet()


class Cache(_octavo.Cache):
    """A cache of at most `memory_max` bytes, pages and all else together.

    The arguments are `memory_max` (default "64MiB") and, by name, `page_bytes` (4096),
    `buffers_max` and `background` (True: a thread writes dirty pages back).
    """

    def __init__(self, memory_max="64MiB", **_settings) -> None:
        super().__init__()
        _warn_if_too_large(memory_max)
        _caches.add(self)


def _warn_if_too_large(memory_max) -> None:
    """Warn of a cache that the machine, or the control group of the process, has no memory for."""
    limits = [_os.sysconf("SC_PHYS_PAGES") * _os.sysconf("SC_PAGE_SIZE")]
    try:
        with open("/sys/fs/cgroup/memory.max") as limit:
            limits.append(int(limit.read()))
    except (OSError, ValueError):
        pass  # No control groups of version 2, or no limit: `max`.
    most = min(limits)
    wanted = bytes_of(memory_max)
    if wanted > most:
        _warnings.warn(
            f"memory_max is {wanted >> 20} MiB, but there are only {most >> 20} MiB of memory: the "
            "process may be killed before the cache is full",
            RuntimeWarning,
            stacklevel=3,
        )


@_atexit.register
def _close_all() -> None:
    for cache in list(_caches):
        cache._end()


def attach(
    address: str, export: str = "", timeout: float | None = None, connections_max: int = 4
) -> Remote:
    """Open an export of a running server: `unix:/path/of/socket` or `tcp:host:port`.

    `timeout` bounds each wait for the server, in seconds. Each thread that waits has a connection
    of its own, up to `connections_max`. The result can be pickled, and survives `fork`: the other
    process makes connections of its own.
    """
    return Remote(address, export, timeout=timeout, connections_max=connections_max)
