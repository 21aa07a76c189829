"""Loaders of training data: four worker processes, by each way to start them.

The loader does what PyTorch's `DataLoader` does: it passes the data set to its workers as an
argument (inherited by fork, pickled otherwise), sends them indices, and takes the results in order.
"""

import multiprocessing
import os

import fsspec
import octavo
import pytest

WORKERS = 4
RECORD = 6000


class Records:
    """A data set of records of one file object."""

    def __init__(self, file):
        self.file = file

    def __len__(self):
        return self.file.size // RECORD

    def __getitem__(self, index):
        self.file.seek(index * RECORD)
        return self.file.read(RECORD)


class Source:
    """A data set that reads an attached export at offsets."""

    def __init__(self, remote):
        self.remote = remote

    def __len__(self):
        return self.remote.size // RECORD

    def __getitem__(self, index):
        return self.remote.read(RECORD, index * RECORD)


class Files:
    """A data set of whole files of a file system."""

    def __init__(self, fs, paths):
        self.fs, self.paths = fs, paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.fs.cat_file(self.paths[index])


def work(data, orders, results):
    for index in iter(orders.get, None):
        results.put((index, data[index], os.getpid()))


def load(method, data):
    """Read the whole data set with four workers; return the items in order."""
    context = multiprocessing.get_context(method)
    orders, results = context.Queue(), context.Queue()
    workers = [
        context.Process(target=work, args=(data, orders, results), daemon=True)
        for _ in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    for index in range(len(data)):
        orders.put(index)
    found, processes = {}, set()
    for _ in range(len(data)):
        index, item, process = results.get(timeout=100)
        found[index] = item
        processes.add(process)
    for _ in workers:
        orders.put(None)
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    assert os.getpid() not in processes
    return [found[index] for index in range(len(data))]


def records_of(data):
    return [data[at : at + RECORD] for at in range(0, len(data) - RECORD + 1, RECORD)]


methods = pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])


@methods
def test_workers_read_one_export(method, server):
    address, data = server
    remote = octavo.attach(address, "disk")
    remote.read(100)
    assert load(method, Source(remote)) == records_of(data)
    assert remote.read(100) == data[:100]


@methods
def test_workers_read_a_file_of_an_export(method, server):
    address, data = server
    file = fsspec.filesystem("octavo-nbd", address=address).open("disk")
    assert load(method, Records(file)) == records_of(data)


@methods
def test_workers_read_a_file_in_caches_of_their_own(method, tmp_path):
    data = os.urandom(2_000_000)
    (tmp_path / "records").write_bytes(data)
    file = fsspec.filesystem("octavo", memory_max="32MiB").open(str(tmp_path / "records"))
    file.read(100)
    assert load(method, Records(file)) == records_of(data)


@methods
def test_workers_read_files_of_a_file_system(method, tmp_path):
    expected = [os.urandom(10_000 + number) for number in range(50)]
    for number, data in enumerate(expected):
        (tmp_path / f"{number:03}").write_bytes(data)
    fs = fsspec.filesystem("octavo", memory_max="32MiB")
    paths = sorted(fs.ls(str(tmp_path), detail=False))
    assert fs.cat_file(paths[0]) == expected[0]
    assert load(method, Files(fs, paths)) == expected
