"""A client of a server's control socket: statistics as dicts, and what `octavo ctl` does."""

import json
import os
import socket
from typing import Any

from octavo._errors import IoError

_REPLY_BYTES_MAX = 16 << 20


class Server:
    """A running server, by its control socket.

    Without a path, the socket of a server of this user without a configuration, or else
    `/run/octavo/control.sock`. Each call makes a connection of its own, so any thread and any
    process may use the same object.
    """

    def __init__(self, path: str | os.PathLike | None = None, *, timeout: float | None = None) -> None:
        self.path = str(path).removeprefix("unix:") if path else _default_path()
        self.timeout = timeout

    def stat(self) -> dict[str, Any]:
        """The counters of the server, its partitions and their exports."""
        return self.ask("stat")

    def partition(self, name: str) -> dict[str, Any]:
        """The counters of one partition."""
        for partition in self.stat()["partitions"]:
            if partition["name"] == name:
                return partition
        raise KeyError(name)

    def sync(self) -> Any:
        """Make every acknowledged write durable."""
        return self.ask("sync")

    def miss_curve(self, partition: str) -> dict[str, Any]:
        """The misses of a partition at other sizes: `bytes`, `misses` and `miss_ratio` are arrays."""
        import numpy

        curve = self.ask("mrc", partition=partition)
        points = curve.pop("points")
        for name in points[0] if points else ("bytes", "misses", "miss_ratio"):
            kind = numpy.uint64 if name == "bytes" else numpy.float64
            curve[name] = numpy.array([point[name] for point in points], kind)
        return curve

    def ask(self, verb: str, **fields: Any) -> Any:
        """Send a request of the control protocol, and return its answer (octavo-ctl(1))."""
        request = json.dumps({"v": 1, "do": verb, **fields}) + "\n"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(self.timeout)
            try:
                stream.connect(self.path)
            except OSError as error:
                sentence = f"{self.path}: no server listens here: {error.strerror}"
                raise IoError(error.errno, sentence) from error
            stream.sendall(request.encode())
            with stream.makefile("rb") as lines:
                while True:
                    line = lines.readline(_REPLY_BYTES_MAX)
                    if not line.endswith(b"\n"):
                        raise IoError(104, f"{self.path}: the server closed the connection")
                    reply = json.loads(line)
                    if "ok" in reply:
                        return reply["ok"]
                    if "error" in reply:
                        raise IoError(5, f"{self.path}: {reply['error']['message']}")

    def __repr__(self) -> str:
        return f"octavo.Server({self.path!r})"


def _default_path() -> str:
    """Return the path that `octavo ctl` would use."""
    system = "/run/octavo"
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        own = os.path.join(runtime, "octavo")
    else:
        own = system if os.getuid() == 0 else f"/tmp/octavo-{os.getuid()}"
    paths = [os.path.join(folder, "control.sock") for folder in (own, system)]
    return next(filter(os.path.exists, paths), paths[0])
