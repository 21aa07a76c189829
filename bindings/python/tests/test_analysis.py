"""Simulations of arrays of page numbers."""

import array
import time
import unittest

import octavo
from tests.support import Folder, Served, needs

LOOP = array.array("Q", list(range(1000)) * 20)


class Simulations(unittest.TestCase):
    def test_a_loop_that_fits_misses_once(self):
        rows = octavo.simulate(LOOP, [500, "8MiB"], ["octavo", "global-lru"])
        self.assertEqual(len(rows), 4)
        for row in rows:
            self.assertEqual(row["requests"], len(LOOP))
            self.assertAlmostEqual(row["miss_ratio"], row["misses"] / len(LOOP))
        small = {row["policy"]: row["misses"] for row in rows if row["capacity"] == "500p"}
        self.assertEqual(small["global-lru"], len(LOOP), "LRU keeps nothing of a loop")
        self.assertLess(small["octavo"], len(LOOP))

    def test_wrong_arguments_are_explained(self):
        for wrong in (
            lambda: octavo.simulate(LOOP, 100, "magic"),
            lambda: octavo.simulate(LOOP, "lots"),
            lambda: octavo.simulate(LOOP, 100, ways=7),
            lambda: octavo.simulate(array.array("Q"), 100),
        ):
            with self.assertRaises(octavo.ConfigError):
                wrong()

    def test_progress_is_told_and_an_exception_ends_the_run(self):
        pages = array.array("Q", list(range(200_000)) * 60)
        told = []

        def progress(step, requests, share):
            told.append((step, requests, share))
            raise KeyboardInterrupt

        begin = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            octavo.simulate(pages, [1000], octavo.policies(), progress=progress)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(len(told), 1)
        self.assertIn(told[0][0], ("count", "run", "future"))


@needs("numpy")
class Servers(Served):
    def test_a_server_has_miss_curves(self):
        octavo.attach(self.address, "disk").read(100_000)
        curve = octavo.Server(self.path("control.sock")).miss_curve("disks")
        self.assertEqual(curve["partition"], "disks")
        self.assertEqual(len(curve["bytes"]), len(curve["misses"]))


@needs("numpy")
class Arrays(Folder):
    def test_curves_are_arrays(self):
        import numpy as np

        pages = np.tile(np.arange(1000), 10)
        (curve,) = octavo.mrc(pages, points=20)
        self.assertEqual(curve["miss_ratio"].dtype, np.float64)
        self.assertEqual(curve["capacity_pages"].dtype, np.uint64)
        self.assertEqual(curve["footprint_pages"], 1000)
        self.assertEqual(curve["miss_ratio"][-1], 0.1)
        self.assertEqual(curve["miss_ratio"][0], 1.0)
        curves = octavo.mrc(pages, ["octavo", "lru"], points=5)
        self.assertEqual([one["method"] for one in curves], ["miniature"] * 2)

    def test_any_array_of_numbers_will_do(self):
        import numpy as np

        expected = octavo.simulate(LOOP, 100)[0]["misses"]
        for kind in np.uint64, np.int64, np.int32, np.uint16:
            pages = np.frombuffer(LOOP, np.uint64).astype(kind)
            self.assertEqual(octavo.simulate(pages, 100)[0]["misses"], expected)
        strided = np.repeat(np.frombuffer(LOOP, np.uint64), 2)[::2]
        self.assertEqual(octavo.simulate(strided, 100)[0]["misses"], expected)
        with self.assertRaises(ValueError):
            octavo.simulate(np.array([-1]), 100)
        with self.assertRaises(TypeError):
            octavo.simulate(np.array([1.5]), 100)

    def test_a_partition_has_a_miss_curve(self):
        import numpy as np

        partition = self.partition("16MiB")
        one = partition.open(self.make("data", 8 << 20)[0])
        for _ in range(5):
            for at in range(0, 8 << 20, 4096):
                one.read(1, at)
        curve = partition.miss_curve()
        if curve is not None:
            self.assertEqual(curve["pages"].dtype, np.uint64)
            self.assertEqual(len(curve["pages"]), len(curve["misses"]))

    def test_pages_are_arrays_without_a_copy(self):
        import numpy as np

        path, data = self.make("data", 8192)
        one = self.partition().open(path)
        page = np.frombuffer(one.pin(4096), np.uint8)
        self.assertFalse(page.flags.writeable)
        self.assertEqual(page.tobytes(), data[4096:])
        into = np.zeros((2, 512), np.uint64)
        self.assertEqual(one.read_into(into), 8192)
        self.assertEqual(into.tobytes(), data)
