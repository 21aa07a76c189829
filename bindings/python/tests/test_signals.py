"""Waits that Ctrl-C ends, exceptions of sources, and handles that were not closed."""

import gc
import os
import signal
import socket
import threading
import time
import unittest
import warnings

import octavo
from tests.support import PAGE, Folder

# A wait that no signal ends fails after this time, in seconds.
HANG = 60


class Interrupt(Exception):
    """What the handler of the tests raises."""


class Signals(Folder):
    def setUp(self):
        super().setUp()
        if threading.current_thread() is not threading.main_thread():
            self.skipTest("handlers of signals run on the main thread")
        self.before = signal.signal(signal.SIGUSR1, self.raise_interrupt)
        self.addCleanup(signal.signal, signal.SIGUSR1, self.before)

    @staticmethod
    def raise_interrupt(_number, _frame):
        raise Interrupt

    def assert_interrupted(self, call, entered=None):
        """Run a call that hangs, and send this process a signal once it hangs: `entered` is set."""
        started = threading.Event()

        def send():
            (entered or started).wait(HANG)
            # The call may have begun, and not wait yet.
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGUSR1)

        sender = threading.Thread(target=send)
        sender.start()
        begun = time.monotonic()
        with self.assertRaises(Interrupt):
            started.set()
            call()
            # The signal comes in any case, and must not come to another test.
            sender.join()
            self.fail("the call has returned")
        sender.join()
        self.assertLess(time.monotonic() - begun, HANG / 2)

    def hanging(self, partition):
        """Open a source that hangs until the test ends, and return it with the event that it was
        asked."""
        entered, leave = threading.Event(), threading.Event()
        self.addCleanup(leave.set)

        def fetch(_offset, length):
            entered.set()
            leave.wait(HANG)
            return b"x" * length

        return partition.open_source("hanging", 64 * PAGE, fetch), entered, leave

    def test_a_fetch_that_hangs_is_left_behind(self):
        cache = octavo.Cache("16MiB", page_bytes=PAGE)
        partition = cache.partition("app")
        source, entered, leave = self.hanging(partition)
        buffer = bytearray(PAGE)
        self.assert_interrupted(lambda: source.read_into(buffer), entered)
        self.assertEqual(buffer, bytes(PAGE))
        for call in (
            lambda: source.read(10),
            lambda: source.read(2 * PAGE, 8 * PAGE),
            lambda: source.pin(16 * PAGE),
            source.close,
            cache.close,
        ):
            self.assert_interrupted(call)
        # Another file of the cache is read meanwhile.
        file, data = self.make("data", PAGE)
        with partition.open(file) as other:
            self.assertEqual(other.read(PAGE), data)
        leave.set()
        cache.close()
        self.assertEqual(buffer, bytes(PAGE), "a read that was left behind writes no memory")

    def test_fetches_that_hang_leave_threads_for_others(self):
        cache = octavo.Cache("16MiB", page_bytes=PAGE)
        partition = cache.partition("app")
        for _ in range(10):
            source, entered, leave = self.hanging(partition)
            self.addCleanup(leave.set)
            self.assert_interrupted(lambda: source.read(1), entered)
        with partition.open_source("good", PAGE, lambda _offset, length: b"z" * length) as good:
            self.assertEqual(good.read(PAGE), b"z" * PAGE)
        cache._end()

    def test_the_end_does_not_wait_for_what_was_left_behind(self):
        cache = octavo.Cache("16MiB", page_bytes=PAGE)
        partition = cache.partition("app", mode="writeback")
        file, data = self.make("data", PAGE)
        written = partition.open(file)
        source, entered, _leave = self.hanging(partition)
        self.assert_interrupted(lambda: source.read(1), entered)
        written.write(b"late")
        begun = time.monotonic()
        cache._end()
        self.assertLess(time.monotonic() - begun, HANG / 2)
        self.assertTrue(cache.closed)
        with open(file, "rb") as plain:
            self.assertEqual(plain.read(), b"late" + data[4:])

    def test_a_server_that_hangs_is_left(self):
        path = self.path("silent.sock")
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(path)
            silent.listen()
            self.assert_interrupted(lambda: octavo.exports(f"unix:{path}"))
            self.assert_interrupted(lambda: octavo.attach(f"unix:{path}", "disk"))
            with self.assertRaises(octavo.IoError) as caught:
                octavo.exports(f"unix:{path}", timeout=0.3)
            self.assertIsInstance(caught.exception, OSError)

    def test_handlers_that_return_do_not_disturb_a_wait(self):
        seen = []
        signal.signal(signal.SIGUSR1, lambda number, _frame: seen.append(number))
        partition = self.partition(page_bytes=PAGE)

        def fetch(_offset, length):
            os.kill(os.getpid(), signal.SIGUSR1)
            end = time.monotonic() + HANG
            while not seen and time.monotonic() < end:
                time.sleep(0.01)
            return b"y" * length

        with partition.open_source("source", PAGE, fetch) as source:
            self.assertEqual(source.read(PAGE), b"y" * PAGE)
        self.assertEqual(seen, [signal.SIGUSR1])


class Causes(Folder):
    def test_the_exception_of_a_source_is_the_cause_of_its_readers(self):
        class Own(Exception):
            pass

        def fetch(_offset, _length):
            raise Own("no network here")

        partition = self.partition(page_bytes=PAGE)
        source = partition.open_source("source", 4 * PAGE, fetch)
        self.addCleanup(source.close)
        for read in lambda: source.read(10), lambda: source.pin(PAGE):
            with self.assertRaises(octavo.IoError) as caught:
                read()
            self.assertIsInstance(caught.exception.__cause__, Own)
            self.assertIn("no network here", str(caught.exception))
        found = []

        def elsewhere():
            try:
                source.read(10)
            except octavo.IoError as error:
                found.append(error.__cause__)

        reader = threading.Thread(target=elsewhere)
        reader.start()
        reader.join(HANG)
        self.assertIsInstance(found[0], Own)


class Unclosed(Folder):
    def warned(self, work):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            work()
            gc.collect()
        return [str(one.message) for one in caught if one.category is ResourceWarning]

    def test_handles_that_are_dropped_open_are_told_of(self):
        file, _ = self.make("data", PAGE)
        cache = octavo.Cache("16MiB")
        partition = cache.partition("app")
        told = self.warned(lambda: partition.open(file))
        self.assertEqual(len(told), 1)
        self.assertRegex(told[0], r"unclosed <octavo\.Object .*data")

        def drop():
            nonlocal cache, partition
            del cache, partition

        self.assertEqual(self.warned(drop), ["unclosed <octavo.Cache>"])

    def test_handles_that_were_closed_are_not_told_of(self):
        file, _ = self.make("data", PAGE)

        def work():
            with octavo.Cache("16MiB") as cache:
                with cache.partition("app").open(file) as one:
                    one.read(1)
                left = cache.partition("other").open(file, lock=False)
            del left

        self.assertEqual(self.warned(work), [])


class Large(unittest.TestCase):
    def test_a_cache_that_is_larger_than_the_machine_warns(self):
        with self.assertWarnsRegex(RuntimeWarning, "memory_max"):
            octavo._warn_if_too_large("1024TiB")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            octavo._warn_if_too_large("16MiB")
            octavo._warn_if_too_large(1 << 20)


if __name__ == "__main__":
    unittest.main()
