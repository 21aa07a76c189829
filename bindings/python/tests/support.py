"""What the tests share: a file of known bytes, a server, and modules that may be missing."""

import importlib
import os
import random
import shutil
import subprocess
import tempfile
import time
import unittest

import octavo

PAGE = 4096


def needs(module):
    """Skip a class of tests without a module."""
    try:
        importlib.import_module(module)
    except ImportError:
        return unittest.skip(f"{module} is not installed")
    return lambda tests: tests


class Folder(unittest.TestCase):
    """Tests with a folder of their own."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="octavo-python-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def make(self, name, size, seed=1):
        """Make a file of random bytes, and return its path and the bytes."""
        data = random.Random(seed).randbytes(size)
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name), data

    def partition(self, memory="16MiB", **settings):
        cache = octavo.Cache(memory)
        self.addCleanup(cache.close)
        return cache.partition("app", **settings)


class Served(Folder):
    """Tests with a server that exports one disk of 4 MiB."""

    SIZE = 4 << 20

    def setUp(self):
        super().setUp()
        self.program = os.environ.get("OCTAVO_PROGRAM")
        if not self.program:
            self.skipTest("OCTAVO_PROGRAM does not name the program octavo")
        self.disk, self.data = self.make("disk.img", self.SIZE)
        self.address = f"unix:{self.path('nbd.sock')}"
        with open(self.path("octavo.toml"), "w") as config:
            config.write(
                f"""
[cache]
memory_max = "32MiB"
[[partition]]
name = "disks"
cache_mode = "writeback"
[[export]]
name = "disk"
path = "{self.disk}"
partition = "disks"
[listen]
nbd = "{self.address}"
control = "unix:{self.path("control.sock")}"
"""
            )
        self.server = None
        self.start()
        self.addCleanup(self.stop)

    def start(self):
        command = [self.program, "serve", "--config", self.path("octavo.toml")]
        self.server = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 30
        while True:
            try:
                return octavo.exports(self.address)
            except OSError:
                if time.monotonic() > end or self.server.poll() is not None:
                    raise
                time.sleep(0.02)

    def stop(self, kill=False):
        if kill:
            self.server.kill()
        else:
            self.server.terminate()
        self.server.wait(30)
