"""File objects over objects of a cache."""

import errno
import io
import pickle
import zipfile

from octavo.file import OctavoFile
from tests.support import PAGE, Folder


class Files(Folder):
    def setUp(self):
        super().setUp()
        self.file, self.data = self.make("data", 5 * PAGE + 11)
        self.object = self.partition(mode="writeback").open(self.file)

    def test_reads_and_seeks_are_those_of_a_file(self):
        with open(self.file, "rb") as plain, OctavoFile(self.object) as ours:
            for file in plain, ours:
                self.assertEqual(file.seek(-5, io.SEEK_END), len(self.data) - 5)
            self.assertEqual(ours.read(), plain.read())
            self.assertEqual(ours.read(1), b"")
            self.assertEqual((ours.seek(10), ours.seek(5, io.SEEK_CUR)), (10, 15))
            self.assertEqual(ours.read(PAGE), self.data[15 : 15 + PAGE])
            self.assertEqual(ours.tell(), 15 + PAGE)
            self.assertEqual(ours.pread(3, 1), self.data[1:4])
            self.assertEqual(ours.tell(), 15 + PAGE)
            with self.assertRaises(ValueError):
                ours.seek(-1)
        with self.assertRaises(ValueError):
            ours.read()

    def test_lines_are_those_of_a_file(self):
        text = b"".join(b"x" * length + b"\n" for length in (0, 1, 4095, 4096, 10_000)) + b"end"
        self.object.write(text)
        self.object.truncate(len(text))
        self.assertEqual(list(OctavoFile(self.object)), text.splitlines(keepends=True))
        self.assertEqual(OctavoFile(self.object).readline(0), b"")
        with io.TextIOWrapper(OctavoFile(self.object)) as lines:
            self.assertEqual(sum(1 for _ in lines), 6)

    def test_writes_fill_the_file_and_then_fail(self):
        file = OctavoFile(self.object, "r+b")
        file.seek(len(self.data) - 3)
        self.assertEqual(file.write(b"12345"), 3)
        with self.assertRaises(OSError) as caught:
            file.write(b"45")
        self.assertEqual(caught.exception.errno, errno.EFBIG)
        file.truncate(len(self.data) + 2)
        self.assertEqual(file.write(b"45"), 2)
        file.sync()
        with open(self.file, "rb") as plain:
            self.assertEqual(plain.read(), self.data[:-3] + b"12345")
        with self.assertRaises(io.UnsupportedOperation):
            OctavoFile(self.object).write(b"x")

    def test_buffered_and_archive_readers_work(self):
        with zipfile.ZipFile(self.path("archive.zip"), "w") as archive:
            archive.writestr("inside", self.data)
        stored = self.partition().open(self.path("archive.zip"), read_only=True)
        with zipfile.ZipFile(OctavoFile(stored)) as archive:
            self.assertEqual(archive.read("inside"), self.data)
        self.assertEqual(io.BufferedReader(OctavoFile(self.object)).read(), self.data)

    def test_a_file_of_an_embedded_cache_cannot_be_pickled(self):
        with self.assertRaisesRegex(TypeError, "cannot be pickled"):
            pickle.dumps(OctavoFile(self.object))

    def test_a_file_that_owns_its_source_closes_it(self):
        OctavoFile(self.object, close_source=True).close()
        with self.assertRaises(ValueError):
            self.object.read(1)
