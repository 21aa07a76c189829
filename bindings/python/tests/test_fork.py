"""Children of fork: clear errors, no waiting, and the parent is not disturbed."""

import gc
import os
import signal
import sys
import traceback

import octavo
from octavo.file import OctavoFile
from tests.support import PAGE, Folder, Served


def in_child(test, work):
    """Run `work` in a child of fork that has 30 seconds."""
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            work()
            sys.stderr.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    test.assertEqual(status, 0, "the child failed, or did not end")


class Forks(Folder):
    def test_a_child_gets_an_error_and_makes_a_cache_of_its_own(self):
        file, data = self.make("data", 16 * PAGE)
        cache = octavo.Cache("16MiB")
        one = cache.partition("app").open(file)
        one.read(PAGE)
        pin = one.pin()

        def work():
            for call in (
                lambda: one.read(PAGE),
                lambda: one.read(PAGE, 8 * PAGE),
                lambda: one.pin(9 * PAGE),
                lambda: one.write(b"x"),
                lambda: cache.partition("another"),
                lambda: cache.stat(),
                lambda: one.close(),
            ):
                with self.assertRaises(octavo.ForkedError):
                    call()
            self.assertEqual(bytes(pin), data[:PAGE])
            cache.close()
            own = octavo.Cache("16MiB").partition("own").open(file, read_only=True, lock=False)
            self.assertEqual(own.read(PAGE, PAGE), data[PAGE : 2 * PAGE])

        in_child(self, work)
        self.assertEqual(one.read(PAGE, 3 * PAGE), data[3 * PAGE : 4 * PAGE])
        cache.close()

    def test_a_child_may_drop_what_it_inherited(self):
        held = [self.partition().open(self.make("data", PAGE)[0])]
        held.append(held[0].pin())

        def work():
            held.clear()
            gc.collect()

        in_child(self, work)
        self.assertEqual(len(held[0].read(PAGE)), PAGE)


class Attached(Served):
    def test_a_child_connects_by_itself(self):
        remote = octavo.attach(self.address, "disk")
        file = OctavoFile(remote)
        file.seek(100)
        self.assertEqual(remote.read(PAGE, PAGE), self.data[PAGE : 2 * PAGE])

        def work():
            for at in range(0, self.SIZE - PAGE, PAGE * 37):
                self.assertEqual(remote.read(PAGE, at), self.data[at : at + PAGE])
            self.assertEqual(file.read(10), self.data[100:110])

        for _ in range(2):
            in_child(self, work)
            self.assertEqual(remote.read(PAGE), self.data[:PAGE])
