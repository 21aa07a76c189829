"""`zarr.testing.store`: zarr's suite for stores, on files that are read through the cache."""

import os

import numpy
import pytest
import zarr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from octavo.filesystem import OctavoFileSystem
from zarr.core.buffer import cpu
from zarr.storage import FsspecStore
from zarr.testing.store import StoreTests


class TestStore(StoreTests[FsspecStore, cpu.Buffer]):
    store_cls = FsspecStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, tmp_path):
        fs = OctavoFileSystem(target_protocol="file", target_options={"auto_mkdir": True})
        return {"fs": AsyncFileSystemWrapper(fs, asynchronous=True), "path": str(tmp_path)}

    @pytest.fixture
    async def store(self, store_kwargs):
        return self.store_cls(**store_kwargs)

    async def set(self, store, key, value):
        path = os.path.join(store.path, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(value.to_bytes())

    async def get(self, store, key):
        with open(os.path.join(store.path, key), "rb") as file:
            return self.buffer_cls.from_bytes(file.read())

    def test_store_repr(self, store):
        assert "FsspecStore" in repr(store)

    def test_store_supports_writes(self, store):
        assert store.supports_writes

    def test_store_supports_listing(self, store):
        assert store.supports_listing


def test_an_array_comes_back(tmp_path):
    array = numpy.arange(200 * 300).reshape(200, 300)
    stored = zarr.create_array(
        f"octavo::file://{tmp_path}/array.zarr",
        shape=array.shape,
        chunks=(64, 64),
        dtype=array.dtype,
        storage_options={"file": {"auto_mkdir": True}},
    )
    stored[:] = array
    again = zarr.open_array(f"octavo::file://{tmp_path}/array.zarr", mode="r")
    for _ in range(2):
        numpy.testing.assert_array_equal(again[:], array)
    numpy.testing.assert_array_equal(again[17:90, 250:], array[17:90, 250:])
