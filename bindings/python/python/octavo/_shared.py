"""The caches of this process that file systems share, and the files that are open in them.

fsspec makes a file system for each thread, so the cache cannot belong to one. A child of `fork`
begins with none.
"""

import collections
import errno
import os
import threading
import weakref

import octavo
from octavo._errors import ForkedError, IoError

# How much stays open without a user: 512 local files, which have descriptors, or 4096 others.
_WEIGHT_MAX = 4096
_LOCAL_WEIGHT, _REMOTE_WEIGHT = 8, 1


class Files:
    """The open files of one cache."""

    def __init__(self, memory_max):
        self._cache = octavo.Cache(memory_max)
        self._partitions = {}
        # The least recently used first.
        self._files = collections.OrderedDict()
        self._weight = 0
        self._lock = threading.RLock()

    def stat(self):
        """The statistics of the cache."""
        return self._cache.stat()

    def take(self, key, identity, opening, is_local):
        """Return the open file of this key and identity, for one user more.

        If there is none, `opening(partition)` opens one. `identity` None opens one in any case.
        """
        with self._lock:
            file = self._files.get(key)
            if file is not None and (identity is None or file.identity != identity):
                self._forget(key)
                file = None
            if file is None:
                file = self._files[key] = _File(identity, opening(self._partition), is_local)
                self._weight += file.weight
                self._shrink()
            self._files.move_to_end(key)
            file.users += 1
            return file

    def give_back(self, file):
        """End one use of a file."""
        with self._lock:
            file.users -= 1
            if file.is_forgotten and not file.users:
                file.object.close()

    def forget(self, chosen):
        """Close the files whose keys are `chosen`, those in use as soon as they are not."""
        with self._lock:
            for key in [key for key in self._files if chosen(key)]:
                self._forget(key)

    def _forget(self, key):
        file = self._files.pop(key)
        self._weight -= file.weight
        file.is_forgotten = True
        if not file.users:
            file.object.close()

    def _shrink(self):
        if self._weight <= _WEIGHT_MAX:
            return
        for key in [key for key, file in self._files.items() if not file.users]:
            self._forget(key)
            if self._weight <= _WEIGHT_MAX:
                return

    def _partition(self, page_bytes, read_ahead):
        settings = (page_bytes, read_ahead)
        if settings not in self._partitions:
            name = f"fsspec/{page_bytes}-{read_ahead}"
            self._partitions[settings] = self._cache.partition(
                name, page_bytes=page_bytes, read_ahead_max_bytes=read_ahead
            )
        return self._partitions[settings]


class _File:
    def __init__(self, identity, opened, is_local):
        self.weight = _LOCAL_WEIGHT if is_local else _REMOTE_WEIGHT
        self.identity = identity
        self.object = opened
        self.users = 0
        self.is_forgotten = False


class Lease:
    """The use of an open file, as the source of an `OctavoFile`. A child of `fork` opens the file
    again, in a cache of its own."""

    read_only = True

    def __init__(self, find, take, name, found):
        """`find()` returns what `found` is: what the file is now. `take(found)` opens it."""
        self._find = find
        self._take = take
        self.name = name
        self._acquire(found)

    def _acquire(self, found):
        files, file = self._take(found)
        self.size = file.object.size
        self.identity = file.identity
        self._object = file.object
        self._end = weakref.finalize(self, _end, os.getpid(), files, file)
        self._end.atexit = False

    def read(self, size, offset=0):
        try:
            return self._object.read(size, offset)
        except ForkedError:
            return self._again().read(size, offset)

    def read_into(self, buffer, offset=0):
        try:
            return self._object.read_into(buffer, offset)
        except ForkedError:
            return self._again().read_into(buffer, offset)

    def pin(self, offset=0):
        try:
            return self._object.pin(offset)
        except ForkedError:
            return self._again().pin(offset)

    def close(self):
        self._end()

    def _again(self):
        self._end.detach()
        identity = self.identity
        self._acquire(self._find())
        if identity is not None and identity != self.identity:
            raise IoError(errno.ESTALE, f"{self.name}: the file has changed since it was opened")
        return self._object


def _end(pid, files, file):
    if pid == os.getpid():
        files.give_back(file)


_lock = threading.Lock()
_all: dict[int, Files] = {}


def files(memory_max):
    """Return the files of the cache of this size, which all file systems of the process share."""
    size = octavo.bytes_of(memory_max)
    with _lock:
        if size not in _all:
            _all[size] = Files(size)
        return _all[size]


def _forget_parent():
    global _lock, _all
    # The parent's caches must not be dropped here under a lock that another thread held.
    _inherited.append(_all)
    _lock, _all = threading.Lock(), {}


_inherited: list[dict[int, Files]] = []
os.register_at_fork(after_in_child=_forget_parent)
