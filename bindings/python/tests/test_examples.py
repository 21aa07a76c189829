"""The example of Dask runs, and affinity does what it is for."""

import json
import os
import subprocess
import sys
import unittest

from tests.support import needs

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(HERE, "..", "examples", "dask_affinity.py")


def is_registered():
    """Whether fsspec finds `octavo` by itself, as it does once the package is installed."""
    try:
        import fsspec
    except ImportError:
        return False
    return "octavo" in fsspec.available_protocols()


@needs("distributed")
@needs("moto.server")
@needs("s3fs")
class Dask(unittest.TestCase):
    @unittest.skipUnless(is_registered(), "the package is not installed, so workers do not find it")
    def test_each_file_is_fetched_and_cached_once(self):
        command = [sys.executable, EXAMPLE, "--json", "--workers", "2", "--files", "16"]
        command += ["--file-bytes", "256KiB", "--warm", "1", "--room", "8"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        rows = {(row["cache"], row["routing"]): row for row in found["rows"]}
        self.assertEqual(len(rows), 7)
        for row in rows.values():
            self.assertGreaterEqual(row["cold_bytes"], 16 << 18)
        affine = rows["ample", "affinity"]
        self.assertEqual(affine["cold_bytes"], 16 << 18)
        self.assertEqual(affine["warm_gets"], [0])
        self.assertEqual(affine["cached_per_distinct"], 1)
        self.assertGreater(rows["ample", "random"]["cached_per_distinct"], 1)
        left = found["a worker left"]
        self.assertEqual(left["bytes_per_moved_byte"], 1)
