"""pyarrow and h5py read through the cache: file objects and the file system."""

import fsspec
import h5py
import numpy
import octavo
import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
import pytest
from octavo.file import OctavoFile


@pytest.fixture
def table(tmp_path):
    rows = 200_000
    random = numpy.random.default_rng(3)
    table = pyarrow.table({"key": numpy.arange(rows), "value": random.random(rows)})
    pyarrow.parquet.write_table(table, tmp_path / "table.parquet", row_group_size=10_000)
    return tmp_path / "table.parquet", table


@pytest.fixture
def partition():
    with octavo.Cache("64MiB") as cache:
        yield cache.partition("app")


def test_pyarrow_reads_a_file_object(table, partition):
    path, expected = table
    with partition.open(path, read_only=True) as stored:
        for _ in range(2):
            assert pyarrow.parquet.read_table(OctavoFile(stored)).equals(expected)
        some = pyarrow.parquet.ParquetFile(OctavoFile(stored)).read_row_group(7, ["value"])
        assert some.equals(expected.slice(70_000, 10_000).select(["value"]))
    assert partition.stat()["hits"] > 0


def test_pyarrow_scans_a_dataset_with_threads(table):
    path, expected = table
    fs = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fsspec.filesystem("octavo")))
    found = pyarrow.dataset.dataset(str(path), filesystem=fs).to_table(use_threads=True)
    assert found.sort_by("key").equals(expected)


def test_pyarrow_reads_an_arrow_file_by_its_pages(tmp_path, table, partition):
    _, expected = table
    path = tmp_path / "table.arrow"
    with pyarrow.OSFile(str(path), "wb") as sink:
        with pyarrow.ipc.new_file(sink, expected.schema) as writer:
            writer.write_table(expected)
    with partition.open(path, read_only=True) as stored:
        file = pyarrow.PythonFile(OctavoFile(stored), mode="r")
        assert pyarrow.ipc.open_file(file).read_all().equals(expected)
        page = pyarrow.py_buffer(stored.pin(4096))
        assert page.to_pybytes() == path.read_bytes()[4096:8192]


def test_h5py_reads_a_file_object(tmp_path, partition):
    path = tmp_path / "array.h5"
    array = numpy.random.default_rng(5).random((500, 400))
    with h5py.File(path, "w") as file:
        file.create_dataset("chunked", data=array, chunks=(50, 50), compression="gzip")
        file.create_dataset("plain", data=array)
    with partition.open(path, read_only=True) as stored:
        with h5py.File(OctavoFile(stored), "r") as file:
            for name in "chunked", "plain":
                numpy.testing.assert_array_equal(file[name][:], array)
                numpy.testing.assert_array_equal(file[name][123:321, 7:9], array[123:321, 7:9])


def test_h5py_reads_a_chained_url(tmp_path):
    path = tmp_path / "array.h5"
    with h5py.File(path, "w") as file:
        file["numbers"] = numpy.arange(100_000)
    with fsspec.open(f"octavo::file://{path}", "rb") as opened, h5py.File(opened, "r") as file:
        assert file["numbers"][5:10_000:77].sum() == numpy.arange(100_000)[5:10_000:77].sum()


def test_h5py_writes_in_place(tmp_path, partition):
    path = tmp_path / "array.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("numbers", data=numpy.zeros(100_000))
    with partition.open(path) as stored:
        with h5py.File(OctavoFile(stored, "r+b"), "r+") as file:
            file["numbers"][500:600] = 7
        stored.sync()
    with h5py.File(path, "r") as file:
        assert file["numbers"][:].sum() == 700
