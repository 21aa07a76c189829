"""`fsspec.tests.abstract`: the suite of fsspec for file systems."""

import fsspec
import fsspec.tests.abstract as abstract
import pytest
from octavo.filesystem import OctavoFileSystem


class LocalFixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self):
        # The fixture of the target's own suite creates missing directories, too.
        return OctavoFileSystem(target_protocol="file", target_options={"auto_mkdir": True})

    @pytest.fixture
    def fs_path(self, tmpdir):
        return str(tmpdir)


class MemoryFixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    @classmethod
    def fs(cls):
        memory = fsspec.filesystem("memory")
        memory.store.clear()
        memory.pseudo_dirs[:] = [""]
        yield OctavoFileSystem(fs=memory, page_bytes="64KiB")
        memory.store.clear()
        memory.pseudo_dirs[:] = [""]

    @pytest.fixture
    def fs_join(self):
        return lambda *args: "/".join(args)

    @pytest.fixture
    def fs_path(self):
        return ""


class TestLocalCopy(abstract.AbstractCopyTests, LocalFixtures):
    pass


class TestLocalGet(abstract.AbstractGetTests, LocalFixtures):
    pass


class TestLocalOpen(abstract.AbstractOpenTests, LocalFixtures):
    pass


class TestLocalPipe(abstract.AbstractPipeTests, LocalFixtures):
    pass


class TestLocalPut(abstract.AbstractPutTests, LocalFixtures):
    pass


class TestMemoryCopy(abstract.AbstractCopyTests, MemoryFixtures):
    pass


class TestMemoryGet(abstract.AbstractGetTests, MemoryFixtures):
    pass


class TestMemoryOpen(abstract.AbstractOpenTests, MemoryFixtures):
    pass


class TestMemoryPipe(abstract.AbstractPipeTests, MemoryFixtures):
    pass


class TestMemoryPut(abstract.AbstractPutTests, MemoryFixtures):
    pass
