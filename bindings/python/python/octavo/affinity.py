"""Which worker reads which file, so that each file is cached once.

Every worker has a cache of its own. A scheduler that sends each file's tasks to the file's `owner`
needs no directory: all that know the workers' names agree. The rule is rendezvous hashing. The
score of a worker for a key is the first eight bytes, big-endian, of
`SHA-256(worker + b"\\0" + key)`; the highest score wins, and equal scores go to the smaller name.
A worker that leaves gives up its own keys, and no other key moves.

>>> workers = ["worker-0", "worker-1", "worker-2"]
>>> owner("bucket/part-00000.parquet", workers)
'worker-1'
>>> assign(["bucket/part-00000.parquet", "bucket/part-00001.parquet"], workers)
{'bucket/part-00000.parquet': 'worker-1', 'bucket/part-00001.parquet': 'worker-2'}
"""

from collections.abc import Iterable
from hashlib import sha256


def score(worker: str, key: str) -> int:
    """Return the score of a worker for a key, from 0 to 2**64 - 1. Both are hashed as UTF-8."""
    text = f"{worker}\0{key}".encode(errors="surrogateescape")
    return int.from_bytes(sha256(text).digest()[:8], "big")


def owner(key: str, workers: Iterable[str]) -> str:
    """Return the worker that owns a key. The order of the workers does not matter.

    Names must outlive restarts: a name with a port of this run moves all keys in the next one.

    # Errors
    `ValueError` without any worker.
    """
    return min(workers, key=lambda worker: (-score(worker, key), worker))


def assign(keys: Iterable[str], workers: Iterable[str]) -> dict[str, str]:
    """Return the owner of each key."""
    workers = list(workers)
    return {key: owner(key, workers) for key in keys}
