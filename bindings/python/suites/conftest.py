"""A server with one disk, for suites that attach to it."""

import os
import random
import subprocess
import time

import octavo
import pytest


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of a server that exports `disk`, and the disk's bytes."""
    folder = tmp_path_factory.mktemp("server")
    data = random.Random(7).randbytes(8 << 20)
    (folder / "disk").write_bytes(data)
    address = f"unix:{folder}/nbd.sock"
    (folder / "octavo.toml").write_text(
        f"""
[cache]
memory_max = "32MiB"
[[partition]]
name = "disks"
[[export]]
name = "disk"
path = "{folder}/disk"
partition = "disks"
[listen]
nbd = "{address}"
control = "unix:{folder}/control.sock"
"""
    )
    program = os.environ["OCTAVO_PROGRAM"]
    process = subprocess.Popen(
        [program, "serve", "--config", str(folder / "octavo.toml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(500):
        try:
            octavo.exports(address)
            break
        except OSError:
            time.sleep(0.02)
    yield address, data
    process.terminate()
    process.wait(30)
