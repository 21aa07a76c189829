"""File systems for fsspec.

`octavo` caches the files of another file system in this process: `octavo::s3://bucket/key`, or
`octavo:///path` for local files. `octavo-nbd` shows the exports of a server as files, which many
processes read through one cache.
"""

import errno
import os
import time

import fsspec
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

import octavo
from octavo import _shared, _versions
from octavo._errors import ConfigError, IoError
from octavo.file import OctavoFile

# A local file that was changed this recently may change again within one tick of its times.
_TICK_NS = 50_000_000

# The most answers about files that are kept.
_KNOWN_MAX = 10_000

# Arguments of `open` that say how a file is buffered, which the cache does in its own way.
_BUFFERS = {"autocommit", "cache_type", "fill_cache"}

# Options that fsspec itself gives to every file system.
_OF_FSSPEC = {
    "asynchronous",
    "batch_size",
    "listings_expiry_time",
    "loop",
    "max_paths",
    "skip_instance_cache",
    "use_listings_cache",
}

# How often a read starts again because the file was replaced in the meantime.
_ATTEMPTS = 4


def _check_options(fs, options):
    """Refuse options that nobody would look at."""
    unknown = sorted(options.keys() - _OF_FSSPEC)
    if unknown:
        names = ", ".join(repr(name) for name in unknown)
        more = ": options of the other file system belong into target_options"
        more = more if isinstance(fs, OctavoFileSystem) else ""
        raise ConfigError(f"the file system {fs.protocol!r} has no option {names}{more}")


class OctavoFileSystem(ChainedFileSystem):
    """The files of another file system, read through a cache of this process.

    Reads of bytes go through the cache; everything else goes to the other file system. A file that
    changed is not served from old pages: each open asks for its size, times and tags (`info`), and
    `check_seconds` lets an answer hold longer. A remote file that is replaced while it is open
    either reads as it was, or fails with ESTALE. A local file that changes while it is open is as
    current as its pages.

    Pages are shared by file systems with the same endpoint and credentials, and by no others.

    `memory_max` is the size of the cache. File systems with the same `memory_max` share one.
    `page_bytes` is 64 KiB for local files and 256 KiB for others; `read_ahead` is the most that is
    read ahead of sequential reads. `direct` keeps local files out of the kernel's page cache.
    Options of the other file system belong into `target_options`.
    """

    protocol = "octavo"

    def __init__(
        self,
        target_protocol=None,
        target_options=None,
        fs=None,
        fo=None,
        memory_max="256MiB",
        page_bytes=None,
        read_ahead="1MiB",
        check_seconds=0,
        direct=True,
        **kwargs,
    ):
        _check_options(self, kwargs)
        super().__init__(**kwargs)
        if fs is not None and target_protocol is not None:
            raise ConfigError("both fs and target_protocol are given: one is enough")
        if fs is None:
            fs = fsspec.filesystem(target_protocol or "file", **(target_options or {}))
        self._fs = fs
        self._fs_pid = os.getpid()
        self.memory_max = memory_max
        self.check_seconds = check_seconds
        self.direct = direct
        self._is_local = isinstance(fs, LocalFileSystem)
        self._page_bytes = octavo.bytes_of(page_bytes or ("64KiB" if self._is_local else "256KiB"))
        self._read_ahead = octavo.bytes_of(read_ahead)
        # What files were, and until when that holds.
        self._known = {}
        # Each instance has another target.
        self._strip_protocol = lambda path: fs._strip_protocol(type(self)._strip_protocol(path))

    @property
    def fs(self):
        """The other file system. In a child of `fork`, a new one: its connections are not
        inherited."""
        if self._fs_pid != os.getpid():
            fs = self._fs
            self._fs = type(fs)(*fs.storage_args, **fs.storage_options)
            self._fs_pid = os.getpid()
        return self._fs

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        for prefix in ("octavo::", "octavo://"):
            if path.startswith(prefix):
                return path[len(prefix) :]
        return path

    def unstrip_protocol(self, name):
        return f"octavo::{self.fs.unstrip_protocol(name)}"

    @property
    def root_marker(self):
        return self.fs.root_marker

    @property
    def sep(self):
        return self.fs.sep

    def cache_stat(self):
        """The statistics of the cache, whose partitions have the pages."""
        return _shared.files(self.memory_max).stat()

    # What reads through the cache.

    def _open(self, path, mode="rb", block_size=None, cache_options=None, **kwargs):
        if mode != "rb":
            self._changed(path)
            return self.fs._open(path, mode=mode, block_size=block_size, **kwargs)
        # What else there is, such as a `version_id`, may ask for other bytes.
        lease = None if kwargs.keys() - _BUFFERS else self._lease(path)
        if lease is None:
            return self.fs.open(path, mode="rb", **kwargs)
        return CachedFile(self, path, lease)

    def cat_file(self, path, start=None, end=None, **kwargs):
        path = self._strip_protocol(path)
        if kwargs:
            return self.fs.cat_file(path, start=start, end=end, **kwargs)
        return self._read(path, [(start, end)])[0]

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **kwargs):
        """Read ranges of files. All ranges of one file are of one version."""
        if kwargs:
            paths = [self._strip_protocol(path) for path in paths]
            return self.fs.cat_ranges(paths, starts, ends, max_gap, on_error=on_error, **kwargs)
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("paths, starts and ends differ in length")
        places = {}
        for place, path in enumerate(paths):
            places.setdefault(self._strip_protocol(path), []).append(place)
        out = [None] * len(paths)
        for path, of_path in places.items():
            try:
                found = self._read(path, [(starts[place], ends[place]) for place in of_path])
            except Exception as error:
                if on_error != "return":
                    raise
                found = [error] * len(of_path)
            for place, one in zip(of_path, found, strict=True):
                out[place] = one
        return out

    def _read(self, path, ranges):
        """Return ranges of one version of a file."""
        for attempt in range(1, _ATTEMPTS + 1):
            lease = self._lease(path)
            if lease is None:
                return [self.fs.cat_file(path, start=start, end=end) for start, end in ranges]
            try:
                spans = [slice(start, end).indices(lease.size) for start, end in ranges]
                return [lease.read(max(end - begin, 0), begin) for begin, end, _ in spans]
            except IoError as error:
                if error.errno != errno.ESTALE or attempt == _ATTEMPTS:
                    raise
            finally:
                lease.close()

    def _lease(self, path):
        """Open a file in the cache; None if it is empty or has no known length."""
        found = self._version(path)
        if not found.size:
            return None
        find, take = lambda: self._version(path), lambda found: self._take(path, found)
        return _shared.Lease(find, take, path, found)

    def _take(self, path, version):
        def open_here(partition):
            pages = partition(self._page_bytes, self._read_ahead)
            if self._is_local:
                return pages.open(path, read_only=True, lock=False, direct=self.direct)
            get = _versions.fetcher(self.fs, path, version, lambda: self._version(path))

            def fetch(offset, length):
                try:
                    return get(offset, length)
                except OSError as error:
                    if error.errno == errno.ESTALE:
                        # The next open must ask again, whatever `check_seconds` is.
                        self._known.pop(path, None)
                    raise

            return pages.open_source(path, version.size, fetch)

        files = _shared.files(self.memory_max)
        key = (_versions.scope(self.fs), path, self._page_bytes, self._read_ahead)
        return files, files.take(key, version.identity, open_here, self._is_local)

    def _version(self, path):
        """Return what the file is now, or was at most `check_seconds` ago."""
        if self.check_seconds and (known := self._known.get(path)):
            if time.monotonic() < known[0]:
                return known[1]
        found = self._local_version(path) if self._is_local else _versions.find(self.fs, path)
        if self.check_seconds:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[path] = (time.monotonic() + self.check_seconds, found)
        return found

    def _local_version(self, path):
        stat = os.stat(path)
        if not os.path.isfile(path):
            raise IsADirectoryError(21, os.strerror(21), path)
        changed_ns = max(stat.st_mtime_ns, stat.st_ctime_ns)
        if time.time_ns() - changed_ns < _TICK_NS:
            return _versions.Version(None, stat.st_size)
        identity = (stat.st_dev, stat.st_ino, stat.st_size, changed_ns, stat.st_mtime_ns)
        return _versions.Version(identity, stat.st_size)

    def _changed(self, *arguments):
        """Forget files that a call with these arguments may change."""
        self._known.clear()
        paths = []
        for argument in arguments:
            if isinstance(argument, dict):
                paths.extend(argument)
            elif isinstance(argument, (list, tuple, set)):
                paths.extend(argument)
            else:
                paths.append(argument)
        paths = [self._strip_protocol(p) for p in paths if isinstance(p, (str, os.PathLike))]
        scope = _versions.scope(self.fs)

        def is_changed(key):
            of, path, *_ = key
            return of == scope and any(
                path == p or path.startswith(p.rstrip("/") + "/") or "*" in p or "?" in p or "[" in p
                for p in paths
            )

        _shared.files(self.memory_max).forget(is_changed)

    def invalidate_cache(self, path=None):
        """Forget what is known of files, and their pages."""
        self._changed(path if path is not None else "*")
        self.fs.invalidate_cache(path)

    def ukey(self, path):
        return self.fs.ukey(self._strip_protocol(path))


class CachedFile(OctavoFile):
    """An open file of an `OctavoFileSystem`. Another process that it is pickled to, or that forks,
    opens the file again in its own cache."""

    def __init__(self, fs, path, lease):
        super().__init__(lease, close_source=True)
        self.fs = fs
        self.path = path

    def info(self):
        return self.fs.info(self.path)

    def __reduce__(self):
        # Another machine sees other numbers of a local file.
        identity = None if self.fs._is_local else self._source.identity
        return _reopen, (self.fs, self.path, self.tell(), identity)


def _reopen(fs, path, at, identity):
    file = fs.open(path, "rb")
    if identity is not None and file._source.identity != identity:
        file.close()
        raise _versions.changed(path)
    file.seek(at)
    return file


def _forwarded(name):
    def call(self, *args, **kwargs):
        return getattr(self.fs, name)(*_bare(args), **_bare(kwargs))

    call.__name__ = name
    call.__doc__ = f"As `{name}` of the other file system."
    return call


def _forwarded_change(name, count):
    def call(self, *args, **kwargs):
        args, kwargs = _bare(args), _bare(kwargs)
        changed = [*args[:count], *kwargs.values()]
        self._changed(*changed)
        try:
            return getattr(self.fs, name)(*args, **kwargs)
        finally:
            self._changed(*changed)

    call.__name__ = name
    call.__doc__ = f"As `{name}` of the other file system."
    return call


def _bare(given):
    """Return arguments whose paths do not name the protocol; the other file system knows the
    rest."""
    if isinstance(given, str):
        return OctavoFileSystem._strip_protocol(given)
    if isinstance(given, (list, tuple)):
        return [_bare(one) for one in given]
    if isinstance(given, dict):
        return {_bare(key): _bare(value) for key, value in given.items()}
    return given


for _name in (
    "ls info exists lexists isdir isfile islink glob find walk du size created modified checksum "
    "sign expand_path get get_file"
).split():
    if hasattr(AbstractFileSystem, _name) or hasattr(LocalFileSystem, _name):
        setattr(OctavoFileSystem, _name, _forwarded(_name))
# The first arguments that are paths of the other file system.
for _name, _count in {
    "mkdir": 1,
    "makedirs": 1,
    "rmdir": 1,
    "rm": 1,
    "rm_file": 1,
    "touch": 1,
    "pipe": 1,
    "pipe_file": 1,
    "mv": 2,
    "copy": 2,
    "cp_file": 2,
    "put": 2,
    "put_file": 2,
}.items():
    setattr(OctavoFileSystem, _name, _forwarded_change(_name, _count))


class ExportFileSystem(AbstractFileSystem):
    """The exports of a server as files: `octavo-nbd://NAME` with the option `address`, such as
    `unix:/run/octavo/nbd.sock`. All processes share the server's cache."""

    protocol = "octavo-nbd"
    cachable = True

    def __init__(self, address, timeout=None, **kwargs):
        _check_options(self, kwargs)
        super().__init__(**kwargs)
        self.address = address
        self.timeout = timeout

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return stringify_path(path).removeprefix("octavo-nbd://").strip("/")

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        if path:
            names = [path]
        else:
            names = octavo.exports(self.address, timeout=self.timeout)
        found = [self._info(name) for name in names]
        return found if detail else [one["name"] for one in found]

    def info(self, path, **kwargs):
        path = self._strip_protocol(path)
        return self._info(path) if path else {"name": "", "size": 0, "type": "directory"}

    def _info(self, name):
        with octavo.attach(self.address, name, self.timeout) as remote:
            return {"name": name, "size": remote.size, "type": "file"}

    def _open(self, path, mode="rb", **kwargs):
        remote = octavo.attach(self.address, path, self.timeout)
        return OctavoFile(remote, mode, close_source=True)

    def cat_file(self, path, start=None, end=None, **kwargs):
        with octavo.attach(self.address, self._strip_protocol(path), self.timeout) as remote:
            begin, end, _ = slice(start, end).indices(remote.size)
            return remote.read(max(end - begin, 0), begin)
