"""File systems for fsspec."""

import errno
import hashlib
import http.server
import os
import pickle
import threading
import unittest

import octavo
from tests.support import PAGE, Folder, Served, needs
from tests.test_fork import in_child

try:
    import fsspec
    from octavo.filesystem import ExportFileSystem, OctavoFileSystem

    fsspec.register_implementation("octavo", OctavoFileSystem, clobber=True)
    fsspec.register_implementation("octavo-nbd", ExportFileSystem, clobber=True)
except ImportError:
    pass


@needs("fsspec")
class Local(Folder):
    def setUp(self):
        super().setUp()
        self.fs = OctavoFileSystem(memory_max="32MiB")

    def test_urls_open_through_the_cache(self):
        path, data = self.make("data", 5 * PAGE)
        for url in f"octavo::file://{path}", f"octavo://{path}":
            with fsspec.open(url, "rb", octavo={"memory_max": "32MiB"}) as file:
                self.assertEqual(file.read(), data)
        with self.fs.open(path) as file:
            file.seek(PAGE)
            self.assertEqual(file.read(10), data[PAGE : PAGE + 10])
        self.assertEqual(self.fs.cat_file(path, 5, -5), data[5:-5])
        self.assertEqual(self.fs.cat_file(path, -7), data[-7:])
        self.assertEqual(self.fs.cat_ranges([path] * 2, [0, 9], [3, 12]), [data[:3], data[9:12]])

    def test_second_reads_hit(self):
        path, data = self.make("data", 50 * PAGE)
        os.utime(path, (1, 1))
        with self.fs.open(path) as file:
            file.read()
        before = self.fs.cache_stat()["partitions"]
        with self.fs.open(path) as file:
            self.assertEqual(file.read(), data)
        after = self.fs.cache_stat()["partitions"]
        misses = [sum(one["misses"] for one in stat) for stat in (before, after)]
        self.assertLessEqual(misses[1] - misses[0], 50)

    def test_a_changed_file_is_never_served_from_old_pages(self):
        path = self.path("changing")
        for number in range(100):
            content = b"%8d" % number * 100
            with open(path, "wb") as plain:
                plain.write(content)
            self.assertEqual(self.fs.cat_file(path), content)
        for number in range(20):
            content = b"%8d" % -number * 100
            self.fs.pipe_file(path, content)
            self.assertEqual(self.fs.cat_file(path), content)

    def test_writes_text_and_empty_files_go_to_the_other_file_system(self):
        path = self.path("text")
        with self.fs.open(path, "w") as file:
            file.write("one\ntwo\n")
        with self.fs.open(path, "r") as file:
            self.assertEqual(file.readlines(), ["one\n", "two\n"])
        self.fs.touch(self.path("empty"))
        self.assertEqual(self.fs.cat_file(self.path("empty")), b"")
        with self.fs.open(self.path("empty")) as file:
            self.assertEqual(file.read(), b"")
        self.fs.mv(path, self.path("moved"))
        names = self.fs.ls(self.folder, detail=False)
        self.assertEqual(sorted(names), [self.path("empty"), self.path("moved")])
        with self.assertRaises(FileNotFoundError):
            self.fs.open(path)
        with self.assertRaises(IsADirectoryError):
            self.fs.open(self.folder)

    def test_threads_share_one_cache(self):
        path, data = self.make("data", 10 * PAGE)
        found = []

        def read():
            fs = fsspec.filesystem("octavo", memory_max="32MiB")
            found.append((fs.cat_file(path), fs.cache_stat()["memory_max_bytes"]))

        threads = [threading.Thread(target=read) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(found, [(data, 32 << 20)] * 4)

    def test_pickles_and_forks_open_files_again(self):
        path, data = self.make("data", 10 * PAGE)
        file = self.fs.open(path)
        file.seek(123)
        copy = pickle.loads(pickle.dumps(file))
        self.assertEqual(copy.read(5), data[123:128])

        def work():
            self.assertEqual(file.read(5), data[123:128])
            self.assertEqual(self.fs.cat_file(path), data)
            fs = pickle.loads(pickle.dumps(self.fs))
            self.assertEqual(fs.cat_file(path, 0, 9), data[:9])

        in_child(self, work)
        self.assertEqual(file.read(5), data[123:128])


@needs("fsspec")
class Remote(Folder):
    def setUp(self):
        super().setUp()
        self.memory = fsspec.filesystem("memory")
        self.memory.store.clear()
        self.fs = OctavoFileSystem(fs=self.memory, memory_max="32MiB", page_bytes="16KiB")

    def test_files_of_any_file_system_are_cached_by_their_identity(self):
        data = os.urandom(200_000)
        self.memory.pipe_file("/data", data)
        asked = []
        real = self.memory.cat_file
        self.memory.cat_file = lambda *a, **k: asked.append(k) or real(*a, **k)
        self.addCleanup(self.memory.__dict__.pop, "cat_file")
        for _ in range(3):
            with self.fs.open("/data") as file:
                self.assertEqual(file.read(), data)
        self.assertEqual(sum(one["end"] - one["start"] for one in asked), len(data))
        self.memory.pipe_file("/data", data[::-1])
        self.assertEqual(self.fs.cat_file("/data"), data[::-1])

    def test_a_chained_url_names_the_other_file_system(self):
        self.memory.pipe_file("/there", b"content")
        with fsspec.open("octavo::memory://there", "rb", octavo={"memory_max": "32MiB"}) as file:
            self.assertEqual(file.read(), b"content")

    def test_what_the_other_file_system_raises_reaches_the_reader(self):
        self.memory.pipe_file("/gone", b"x" * 100_000)
        with self.fs.open("/gone") as file:
            self.memory.rm_file("/gone")
            with self.assertRaises(OSError):
                file.read()
        with self.assertRaises(FileNotFoundError):
            self.fs.open("/gone")

    def test_a_file_that_is_replaced_while_it_is_open_never_mixes(self):
        old, new = os.urandom(200_000), os.urandom(200_000)
        self.memory.pipe_file("/data", old)
        fs = OctavoFileSystem(fs=self.memory, memory_max="32MiB", page_bytes="16KiB", read_ahead=0)
        with fs.open("/data") as file:
            self.assertEqual(file.read(100), old[:100])
            self.memory.pipe_file("/data", new)
            self.assertEqual(file.pread(16_000, 0), old[:16_000])
            with self.assertRaises(OSError) as caught:
                file.read()
            self.assertEqual(caught.exception.errno, errno.ESTALE)
        self.assertEqual(fs.cat_file("/data"), new)

    def test_ranges_of_several_files_come_in_order(self):
        for name in "abc":
            self.memory.pipe_file(f"/{name}", name.encode() * 1000)
        self.memory.pipe_file("/empty", b"")
        paths = ["/a", "/b", "/missing", "/a", "/empty", "octavo::memory:///c"]
        found = self.fs.cat_ranges(paths, [0, 990, 0, -3, 0, 0], [2, 2000, 5, None, 4, 1])
        self.assertIsInstance(found.pop(2), FileNotFoundError)
        self.assertEqual(found, [b"aa", b"b" * 10, b"aaa", b"", b"c"])
        with self.assertRaises(FileNotFoundError):
            self.fs.cat_ranges(paths, 0, 1, on_error="raise")
        with self.assertRaises(ValueError):
            self.fs.cat_ranges(["/a"], [0, 1], [2])


class OneFile(http.server.BaseHTTPRequestHandler):
    """A server of one file, `content`, with ranges."""

    def do_GET(self, with_body=True):
        content = self.server.content
        start, end = 0, len(content)
        asked = self.headers.get("Range")
        if asked:
            start, end = (int(one) for one in asked.removeprefix("bytes=").split("-"))
            end = min(end + 1, len(content))
        self.server.asked += with_body
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if with_body:
            self.wfile.write(content[start:end])

    def do_HEAD(self):
        self.do_GET(with_body=False)

    def log_message(self, *_arguments):
        pass


@needs("fsspec")
@needs("aiohttp")
class Http(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), OneFile)
        self.server.asked = 0
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = f"http://127.0.0.1:{self.server.server_port}/file"

    def test_each_answer_is_of_the_version_that_was_opened(self):
        old, new = os.urandom(200_000), os.urandom(200_000)
        self.server.content = old
        fs = OctavoFileSystem(
            target_protocol="http", memory_max="32MiB", page_bytes="64KiB", read_ahead=0
        )
        self.assertEqual(fs.cat_file(self.url, 0, 9), old[:9])
        asked = self.server.asked
        with fs.open(self.url) as file:
            self.assertEqual(file.read(100), old[:100])
            self.server.content = new
            self.assertEqual(file.read(100), old[100:200])
            self.assertEqual(self.server.asked, asked)
            with self.assertRaises(OSError) as caught:
                file.read()
            self.assertEqual(caught.exception.errno, errno.ESTALE)
        self.assertEqual(fs.cat_file(self.url), new)


@needs("fsspec")
class Options(unittest.TestCase):
    def test_options_that_nobody_looks_at_are_refused(self):
        for wrong in ({"page_byte": 4096}, {"anon": True}, {"memory": "1GiB"}):
            with self.assertRaisesRegex(octavo.ConfigError, "target_options"):
                OctavoFileSystem(target_protocol="memory", **wrong)
        with self.assertRaises(octavo.ConfigError):
            fsspec.filesystem("octavo-nbd", address="unix:/nowhere", exports=3)
        OctavoFileSystem(target_protocol="memory", use_listings_cache=False, skip_instance_cache=True)

    def test_pages_of_local_files_have_64_kib(self):
        self.assertEqual(OctavoFileSystem()._page_bytes, 64 << 10)
        self.assertEqual(OctavoFileSystem(target_protocol="memory")._page_bytes, 256 << 10)


@needs("fsspec")
class Exports(Served):
    def test_exports_are_files(self):
        fs = fsspec.filesystem("octavo-nbd", address=self.address)
        self.assertEqual(fs.ls("", detail=False), ["disk"])
        self.assertEqual(fs.size("disk"), self.SIZE)
        with fs.open("octavo-nbd://disk") as file:
            file.seek(1000)
            self.assertEqual(file.read(10), self.data[1000:1010])
        self.assertEqual(fs.cat_file("disk", 5, 15), self.data[5:15])
        copy = pickle.loads(pickle.dumps(fs))
        self.assertEqual(copy.cat_file("disk", 0, 4), self.data[:4])
