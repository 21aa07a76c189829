"""Caches inside the process."""

import errno
import gc
import os
import pickle
import sys
import threading
import unittest

import octavo
from tests.support import PAGE, Folder


class Reads(Folder):
    def setUp(self):
        super().setUp()
        self.file, self.data = self.make("data", 10 * PAGE + 100)
        self.object = self.partition().open(self.file)

    def test_read_into_fills_the_buffer_from_the_offset(self):
        buffer = bytearray(3 * PAGE)
        for _ in "miss", "hit":
            self.assertEqual(self.object.read_into(buffer, 1000), len(buffer))
            self.assertEqual(buffer, self.data[1000 : 1000 + 3 * PAGE])

    def test_a_read_past_the_end_is_short(self):
        buffer = bytearray(PAGE)
        self.assertEqual(self.object.read_into(buffer, 10 * PAGE), 100)
        self.assertEqual(buffer[:100], self.data[10 * PAGE :])
        self.assertEqual(self.object.read_into(buffer, 1 << 40), 0)
        self.assertEqual(self.object.read(1 << 40, len(self.data) - 1), self.data[-1:])
        self.assertEqual(self.object.read(10, len(self.data)), b"")

    def test_a_long_read_is_whole(self):
        self.assertEqual(self.object.read(len(self.data)), self.data)

    def test_buffers_that_cannot_be_filled_are_refused(self):
        with self.assertRaises(BufferError):
            self.object.read_into(b"constant")
        with self.assertRaises((BufferError, TypeError)):
            self.object.read_into(memoryview(bytearray(16))[::2])
        with self.assertRaises(TypeError):
            self.object.read_into("text")
        with self.assertRaises(OverflowError):
            self.object.read_into(bytearray(1), -1)

    def test_hits_and_misses_are_counted_once(self):
        partition = self.partition()
        one = partition.open(self.make("one", 4 * PAGE)[0])
        one.read(PAGE, PAGE)
        one.read(4 * PAGE)
        stat = partition.stat()
        self.assertEqual((stat["hits"], stat["misses"]), (1, 4))
        self.assertEqual(one.resident_bytes(), 4 * PAGE)
        self.assertEqual(stat["resident_bytes"], 4 * PAGE)
        partition.evict()
        self.assertEqual(one.resident_bytes(), 0)

    def test_other_threads_run_while_a_read_waits(self):
        entered, leave = threading.Event(), threading.Event()

        def slow(offset, length):
            entered.set()
            leave.wait(30)
            return b"x" * length

        source = self.partition(page_bytes=PAGE).open_source("slow", 4 * PAGE, slow)
        found = []
        reader = threading.Thread(target=lambda: found.append(source.read(PAGE)))
        reader.start()
        self.assertTrue(entered.wait(30))
        self.assertEqual(self.object.read(10), self.data[:10])
        leave.set()
        reader.join(30)
        self.assertEqual(found, [b"x" * PAGE])

    def test_many_threads_read_the_same_bytes(self):
        wrong = []

        def read(seed):
            buffer = bytearray(5000)
            for step in range(300):
                at = (seed * 7919 + step * 104729) % (len(self.data) - 5000)
                self.object.read_into(buffer, at)
                if buffer != self.data[at : at + 5000]:
                    wrong.append(at)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(wrong, [])


class Writes(Folder):
    def test_a_write_is_read_at_once_and_durable_after_sync(self):
        file, _ = self.make("data", 4 * PAGE)
        one = self.partition(mode="writeback").open(file)
        self.assertEqual(one.write(b"octavo", 5000), 6)
        self.assertEqual(one.read(6, 5000), b"octavo")
        self.assertEqual(one.stat()["dirty_bytes"], PAGE)
        one.sync()
        self.assertEqual(one.stat()["dirty_bytes"], 0)
        with open(file, "rb") as plain:
            plain.seek(5000)
            self.assertEqual(plain.read(6), b"octavo")

    def test_lengths_change(self):
        one = self.partition().open(self.path("new"), create_bytes="1MiB")
        self.assertEqual(one.size, 1 << 20)
        one.truncate(3 << 20)
        one.write(b"end", (3 << 20) - 3)
        one.zero(0, PAGE)
        one.discard(PAGE, PAGE)
        self.assertEqual(one.read(10, (3 << 20) - 3), b"end")
        with self.assertRaises(octavo.PastEndError):
            one.write(b"past", 3 << 20)

    def test_read_only_objects_refuse_writes(self):
        one = self.partition().open(self.make("data", PAGE)[0], read_only=True)
        self.assertTrue(one.read_only)
        with self.assertRaises(octavo.ReadOnlyError) as caught:
            one.write(b"x")
        self.assertEqual(caught.exception.errno, errno.EROFS)
        self.assertIsInstance(caught.exception, OSError)

    def test_a_cache_that_is_dropped_writes_what_is_dirty(self):
        file, _ = self.make("data", PAGE)
        cache = octavo.Cache("16MiB", background=False)
        one = cache.partition("app", mode="writeback").open(file)
        one.write(b"late")
        del one, cache
        gc.collect()
        with open(file, "rb") as plain:
            self.assertEqual(plain.read(4), b"late")

    def test_a_closed_cache_says_so(self):
        file, data = self.make("data", PAGE)
        with octavo.Cache("16MiB") as cache:
            one = cache.partition("app", mode="writeback").open(file)
            one.write(b"x")
        self.assertTrue(cache.closed)
        with self.assertRaises(octavo.ClosedError):
            one.read(1)
        with self.assertRaises(octavo.ClosedError):
            cache.stat()
        cache.close()
        with open(file, "rb") as plain:
            self.assertEqual(plain.read(), b"x" + data[1:])


class Cells(Folder):
    """A notebook runs a cell again while the variables of its last run live."""

    def test_a_cell_that_closes_its_cache_can_run_again(self):
        cell = """
with octavo.Cache("16MiB") as cache:
    table = cache.partition("app", mode="writeback").open(file)
    before = table.read(4)
    table.write(run)
"""
        file, data = self.make("data", 4 * PAGE)
        names = {"octavo": octavo, "file": file}
        for before, run in (data[:4], b"run1"), (b"run1", b"run2"), (b"run2", b"run3"):
            names["run"] = run
            exec(cell, names)
            self.assertEqual(names["before"], before)
        with self.assertRaises(octavo.ClosedError):
            names["table"].read(1)

    def test_a_cell_that_closes_its_object_can_run_again(self):
        cell = """
table = partition.open(file)
first = table.read(4)
table.close()
"""
        file, data = self.make("data", 4 * PAGE)
        names = {"partition": self.partition(), "file": file}
        for _ in range(3):
            exec(cell, names)
            self.assertEqual(names["first"], data[:4])

    def test_an_object_that_was_dropped_is_closed(self):
        file, data = self.make("data", 4 * PAGE)
        partition = self.partition()
        for _ in range(3):
            one = partition.open(file)
            self.assertEqual(one.read(4), data[:4])
            with self.assertWarns(ResourceWarning):
                del one
                gc.collect()


class Pins(Folder):
    def setUp(self):
        super().setUp()
        self.file, self.data = self.make("data", 4 * PAGE + 10)
        self.object = self.partition().open(self.file)

    def test_a_pin_is_a_read_only_buffer_of_its_page(self):
        pin = self.object.pin(PAGE + 5)
        self.assertEqual((pin.offset, len(pin), pin.is_copy), (PAGE, PAGE, False))
        view = memoryview(pin)
        self.assertTrue(view.readonly)
        self.assertEqual(view, self.data[PAGE : 2 * PAGE])
        self.assertEqual(len(self.object.pin(4 * PAGE)), 10)
        with self.assertRaises(octavo.PastEndError):
            self.object.pin(5 * PAGE)

    def test_a_pin_is_a_snapshot(self):
        pin = self.object.pin()
        self.object.write(b"changed")
        self.assertEqual(bytes(pin), self.data[:PAGE])
        self.assertEqual(self.object.read(7), b"changed")

    def test_a_view_keeps_the_page_after_all_else_is_gone(self):
        cache = octavo.Cache("16MiB")
        one = cache.partition("app").open(self.make("other", 2 * PAGE)[0], lock=False)
        expected = one.read(PAGE)
        view = memoryview(one.pin())
        one.close()
        cache.close()
        del one, cache
        gc.collect()
        self.assertEqual(bytes(view), expected)

    def test_a_pin_is_released_only_without_views(self):
        pin = self.object.pin()
        view = memoryview(pin)
        with self.assertRaises(BufferError):
            pin.release()
        view.release()
        with self.object.pin() as other:
            self.assertEqual(bytes(other), self.data[:PAGE])
        pin.release()
        pin.release()
        with self.assertRaises(BufferError):
            memoryview(pin)
        self.assertEqual(sys.getrefcount(pin), 2)

    def test_a_set_full_of_pins_still_gives_copies(self):
        file, data = self.make("many", 3000 * PAGE)
        one = self.partition("4MiB").open(file)
        pins = [one.pin(page * PAGE) for page in range(3000)]
        self.assertTrue(any(pin.is_copy for pin in pins))
        self.assertFalse(all(pin.is_copy for pin in pins))
        self.assertEqual(b"".join(pins), data)


class Sources(Folder):
    def test_a_source_is_asked_once_for_each_page(self):
        asked = []

        def fetch(offset, length):
            asked.append((offset, length))
            return memoryview(data)[offset : offset + length]

        data = os.urandom(3 * PAGE + 7)
        one = self.partition().open_source("source", len(data), fetch)
        self.assertEqual(one.read(len(data)), data)
        self.assertEqual(one.read(len(data)), data)
        self.assertEqual(sum(length for _, length in asked), len(data))
        self.assertTrue(one.read_only)

    def test_what_a_source_raises_reaches_the_reader(self):
        def refused(offset, length):
            raise PermissionError(errno.EACCES, "not yours")

        partition = self.partition()
        with self.assertRaises(octavo.IoError) as caught:
            partition.open_source("refused", PAGE, refused).read(1)
        self.assertEqual(caught.exception.errno, errno.EACCES)
        self.assertIn("not yours", str(caught.exception))

    def test_a_short_answer_is_an_error_and_not_zeros(self):
        with self.assertRaises(octavo.IoError) as caught:
            self.partition().open_source("short", PAGE, lambda offset, length: b"x").read(PAGE)
        self.assertIn("1 bytes came instead of 4096", str(caught.exception))


class Refusals(Folder):
    def test_settings_that_cannot_be_are_explained(self):
        for wrong in (
            lambda: octavo.Cache("64 bananas"),
            lambda: octavo.Cache(page_bytes=5000),
            lambda: octavo.Cache("16MiB").partition("p", mode="sometimes"),
            lambda: octavo.Cache("16MiB").partition("p", policy="magic"),
        ):
            with self.assertRaises(octavo.ConfigError):
                wrong()
        with self.assertRaises(octavo.NoMemoryError):
            octavo.Cache("64KiB")

    def test_files_that_cannot_be_opened_raise_what_open_raises(self):
        partition = self.partition()
        with self.assertRaises(FileNotFoundError):
            partition.open(self.path("missing"))
        with self.assertRaises(IsADirectoryError):
            partition.open(self.folder)

    def test_what_lives_in_a_process_cannot_be_pickled(self):
        partition = self.partition()
        one = partition.open(self.make("data", PAGE)[0])
        for what in (partition, one, one.pin()):
            with self.assertRaisesRegex(TypeError, "cannot be pickled"):
                pickle.dumps(what)

    def test_any_path_makes_a_name(self):
        deep = os.path.join(self.folder, *["d"] * 100)
        os.makedirs(deep)
        partition = self.partition()
        for path in os.path.join(deep, "file"), self.path(" new\nline\u202e "):
            with open(path, "wb") as file:
                file.write(b"x" * PAGE)
            with partition.open(path) as one:
                self.assertEqual(one.read(1), b"x")
                self.assertTrue(one.name.isprintable())

    def test_sizes_are_numbers_or_text(self):
        self.assertEqual(octavo.bytes_of("64MiB"), 64 << 20)
        self.assertEqual(octavo.bytes_of("3 k"), 3072)
        self.assertEqual(octavo.bytes_of(5), 5)


if __name__ == "__main__":
    unittest.main()
