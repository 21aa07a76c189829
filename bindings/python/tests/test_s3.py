"""Objects of S3 that change, credentials, and servers that give wrong answers."""

import errno
import os
import pickle
import random
import threading
import unittest
from unittest import mock

import octavo
from tests.support import needs
from tests.test_fork import in_child

try:
    import s3fs
    from examples.counting_s3 import CountingS3
    from octavo.filesystem import OctavoFileSystem
except ImportError:
    CountingS3 = object

PAGE = 64 << 10


class Lying(CountingS3):
    """A server whose answers `lie(environ, headers, body)` may change, which returns both."""

    lie = None

    def _answer(self, environ, start):
        if self.lie is None or environ["REQUEST_METHOD"] != "GET":
            return super()._answer(environ, start)
        asked = dict(environ)
        kept = {}

        def started(status, headers, *rest):
            kept.update(status=status, headers=headers, rest=rest)

        body = b"".join(super()._answer(asked, started))
        headers = {name.lower(): value for name, value in kept["headers"]}
        headers, body = self.lie(headers, body)
        start(kept["status"], list(headers.items()), *kept["rest"])
        return [body]


def without_if_match(server):
    """Make a server that does not know If-Match, as some do not."""
    real = server._app

    def app(environ, start):
        environ.pop("HTTP_IF_MATCH", None)
        return real(environ, start)

    server._app = app


@needs("s3fs")
@needs("moto.server")
class S3(unittest.TestCase):
    def setUp(self):
        self.server = Lying()
        self.addCleanup(self.server.close)
        self.client = self.server.client()
        self.client.create_bucket(Bucket="bucket")
        self.fs = self.make()

    def make(self, target=None, **settings):
        """Make a file system whose pages and target no other test has."""
        options = {**(target or self.server.options()), "skip_instance_cache": True}
        settings = {"memory_max": "16MiB", "page_bytes": PAGE, "read_ahead": 0, **settings}
        fs = OctavoFileSystem(
            target_protocol="s3", target_options=options, skip_instance_cache=True, **settings
        )
        self.addCleanup(fs.invalidate_cache)
        return fs

    def put(self, data, key="key"):
        self.client.put_object(Bucket="bucket", Key=key, Body=data, ACL="public-read")
        return data

    def reads(self, fs=None):
        """Read the object, and return the number of GETs."""
        self.server.counts()
        (fs or self.fs).cat_file("bucket/key")
        return self.server.counts()["gets"]

    def assert_stale(self, read, *arguments):
        with self.assertRaises(octavo.IoError) as caught:
            read(*arguments)
        self.assertEqual(caught.exception.errno, errno.ESTALE, caught.exception)


class Changes(S3):
    def test_a_replaced_object_of_the_same_size_is_read_anew(self):
        for number in range(30):
            data = self.put(b"%8d" % number * (PAGE // 4))
            self.assertEqual(self.fs.cat_file("bucket/key"), data)
            self.assertEqual(self.reads(), 0)

    def test_a_kept_listing_does_not_hide_a_change(self):
        self.put(b"1" * PAGE)
        self.fs.ls("bucket")
        self.fs.cat_file("bucket/key")
        data = self.put(b"2" * PAGE)
        self.assertEqual(self.fs.cat_file("bucket/key"), data)

    def test_an_open_file_reads_as_it_was_or_fails(self):
        for knows_if_match in True, False:
            if not knows_if_match:
                without_if_match(self.server)
            old = self.put(random.Random(1).randbytes(8 * PAGE))
            with self.fs.open("bucket/key") as file:
                self.assertEqual(file.read(PAGE), old[:PAGE])
                new = self.put(random.Random(2).randbytes(8 * PAGE))
                self.assertEqual(file.pread(PAGE, 0), old[:PAGE])
                for offset in range(PAGE, 8 * PAGE, PAGE):
                    self.assert_stale(file.pread, PAGE, offset)
                self.assert_stale(file.pread, 8 * PAGE, 0)
                with self.fs.open("bucket/key") as after:
                    self.assertEqual(after.read(), new)
                self.assertEqual(file.pread(PAGE, 0), old[:PAGE])
                # The old version comes back.
                self.put(old)
                self.assertEqual(file.pread(8 * PAGE, 0), old)

    def test_removed_and_shorter_objects_are_errors_of_open_files(self):
        self.put(bytes(4 * PAGE))
        with self.fs.open("bucket/key") as file:
            self.put(bytes(PAGE))
            self.assert_stale(file.pread, PAGE, 2 * PAGE)
            self.client.delete_object(Bucket="bucket", Key="key")
            self.assert_stale(file.pread, PAGE, 2 * PAGE)
        with self.assertRaises(FileNotFoundError):
            self.fs.cat_file("bucket/key")

    def test_one_call_never_mixes_versions(self):
        versions = [bytes([number]) * (6 * PAGE) for number in range(64)]
        self.put(versions[0])
        stop = threading.Event()

        def replace():
            client = self.server.client()
            for number in range(1, 1000):
                client.put_object(Bucket="bucket", Key="key", Body=versions[number % 64])
                if stop.wait(0.01):
                    return

        writer = threading.Thread(target=replace)
        writer.start()
        whole, stale = 0, 0
        try:
            for _ in range(60):
                places = [number * PAGE + 7 for number in range(6)]
                found = [self.fs.cat_ranges, self.fs.cat_file][whole % 2 == 0]
                try:
                    if whole % 2:
                        ends = [place + 9 for place in places]
                        found = self.fs.cat_ranges(["bucket/key"] * 6, places, ends, on_error="raise")
                        data = b"".join(found)
                    else:
                        data = self.fs.cat_file("bucket/key")
                except OSError as error:
                    self.assertEqual(error.errno, errno.ESTALE, error)
                    stale += 1
                    continue
                whole += 1
                self.assertEqual(len(set(data)), 1, "two versions in one answer")
        finally:
            stop.set()
            writer.join()
        self.assertGreater(whole, 0, f"{stale} reads met a change each time")

    def test_a_change_ends_what_check_seconds_promised(self):
        fs = self.make(check_seconds=1000)
        self.put(b"1" * (2 * PAGE))
        self.assertEqual(fs.cat_file("bucket/key", 0, 9), b"1" * 9)
        new = self.put(b"2" * (2 * PAGE))
        self.assertEqual(fs.cat_file("bucket/key", 0, 9), b"1" * 9)
        # The second page is not there. The answer of the server tells of the change.
        self.assertEqual(fs.cat_file("bucket/key"), new)
        self.assertEqual(fs.cat_file("bucket/key", 0, 9), b"2" * 9)

    def test_a_pickled_file_of_another_version_is_an_error(self):
        data = self.put(b"1" * PAGE)
        with self.fs.open("bucket/key") as file:
            pickled = pickle.dumps(file)
            with pickle.loads(pickled) as copy:
                self.assertEqual(copy.read(), data)
            self.put(b"2" * PAGE)
            self.assert_stale(pickle.loads, pickled)

    def test_a_child_of_fork_makes_connections_of_its_own(self):
        data = self.put(os.urandom(4 * PAGE))
        file = self.fs.open("bucket/key")
        self.addCleanup(file.close)
        self.assertEqual(file.read(PAGE), data[:PAGE])

        def work():
            self.assertEqual(file.read(PAGE), data[PAGE : 2 * PAGE])
            self.assertEqual(self.fs.cat_file("bucket/key"), data)

        in_child(self, work)
        self.assertEqual(file.read(PAGE), data[PAGE : 2 * PAGE])

    def test_an_older_version_that_is_asked_for_is_not_the_newest(self):
        self.client.put_bucket_versioning(
            Bucket="bucket", VersioningConfiguration={"Status": "Enabled"}
        )
        old = self.put(b"1" * PAGE)
        version = self.client.head_object(Bucket="bucket", Key="key")["VersionId"]
        new = self.put(b"2" * PAGE)
        fs = self.make({**self.server.options(), "version_aware": True})
        for _ in range(2):
            self.assertEqual(fs.cat_file("bucket/key"), new)
            self.assertEqual(fs.cat_file(f"bucket/key?versionId={version}"), old)
            self.assertEqual(fs.cat_file("bucket/key", version_id=version), old)
            with fs.open("bucket/key", version_id=version) as file:
                self.assertEqual(file.read(), old)


class Answers(S3):
    def test_wrong_answers_are_errors_and_never_bytes(self):
        data = self.put(random.Random(3).randbytes(4 * PAGE))

        def other_range(headers, body):
            headers["content-range"] = f"bytes 0-{len(body) - 1}/{len(data)}"
            return headers, data[: len(body)]

        def other_total(headers, body):
            headers["content-range"] = headers["content-range"].split("/")[0] + "/99999999"
            return headers, body

        def no_range(headers, body):
            headers.pop("content-range", None)
            return headers, body

        def short(headers, body):
            headers["content-length"] = str(len(body) - 1)
            return headers, body[:-1]

        def long(headers, body):
            headers["content-length"] = str(len(body) + 1)
            return headers, body + b"x"

        def other_tag(headers, body):
            headers["etag"] = '"0123"'
            return headers, body

        for lie in other_range, other_total, no_range, short, long, other_tag:
            with self.subTest(lie.__name__):
                self.fs.invalidate_cache()
                self.server.lie = lie
                with mock.patch("octavo._versions.asyncio.sleep", side_effect=no_wait):
                    with self.assertRaises(octavo.IoError):
                        self.fs.cat_file("bucket/key", PAGE, 3 * PAGE)
                self.server.lie = None
                found = self.fs.cat_file("bucket/key", PAGE, 3 * PAGE)
                self.assertEqual(found, data[PAGE : 3 * PAGE])

    def test_an_answer_that_is_cut_off_once_is_asked_for_again(self):
        data = self.put(random.Random(4).randbytes(PAGE))
        cut = []

        def once(headers, body):
            if not cut:
                cut.append(True)
                headers["content-length"] = str(len(body) - 9)
                return headers, body[:-9]
            return headers, body

        self.server.lie = once
        self.assertEqual(self.fs.cat_file("bucket/key"), data)


async def no_wait(_seconds):
    pass


class Credentials(S3):
    def test_pages_are_shared_by_equal_options_only(self):
        self.put(bytes(PAGE))
        self.assertEqual(self.reads(), 1)
        self.assertEqual(self.reads(self.make()), 0)
        mine = self.server.options()
        for others in (
            {**mine, "key": "another-key"},
            {**mine, "secret": "another-secret"},
            {**mine, "token": "a-token"},
            {"endpoint_url": mine["endpoint_url"], "anon": True},
            {**mine, "endpoint_url": mine["endpoint_url"].replace("127.0.0.1", "localhost")},
            {"endpoint_url": mine["endpoint_url"], "client_kwargs": {
                "aws_access_key_id": "k", "aws_secret_access_key": "s"}},
        ):
            self.assertEqual([self.reads(self.make(others)) for _ in range(2)], [1, 0], others)
        self.assertEqual(self.reads(), 0)

    def test_credentials_and_endpoints_of_the_environment_are_told_apart(self):
        self.put(bytes(PAGE))
        found = []
        for key, url in (
            ("one", self.server.url),
            ("two", self.server.url),
            ("two", self.server.url.replace("127.0.0.1", "localhost")),
            ("one", self.server.url),
        ):
            names = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": url}
            with mock.patch.dict(os.environ, names):
                found.append(self.reads(self.make({"anon": False})))
        self.assertEqual(found, [1, 1, 1, 0])

    def test_options_that_are_objects_are_not_told_by_their_text(self):
        class Hidden(str):
            __repr__ = lambda self: "***"

        class Session:
            def __repr__(self):
                return "the session"

        from octavo._versions import scope

        memory = [
            s3fs.S3FileSystem(**self.server.options(), loop=None, skip_instance_cache=True, session=one)
            for one in (None, None)
        ]
        self.assertEqual(scope(memory[0]), scope(memory[1]))
        import fsspec

        made = [
            fsspec.filesystem("memory", session=one, skip_instance_cache=True)
            for one in (Session(), Session(), Hidden("one"), Hidden("two"), "one", "one")
        ]
        scopes = [scope(fs) for fs in made]
        self.assertEqual(len(set(scopes)), 5)
        self.assertEqual(scopes[4], scopes[5])
        self.assertEqual([scope(fs) for fs in made], scopes)

    def test_secrets_are_in_no_text_of_the_cache(self):
        options = {**self.server.options(), "secret": "very-secret", "token": "very-secret-too"}
        fs = self.make(options)
        self.put(bytes(2 * PAGE))
        with fs.open("bucket/key") as file:
            file.read(1)
            self.put(b"1" * 2 * PAGE)
            with self.assertRaises(OSError) as caught:
                file.read()
            texts = [repr(file), repr(fs), str(fs.cache_stat()), repr(caught.exception)]
        self.assertNotIn("very-secret", " ".join(texts))
