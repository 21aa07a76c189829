"""A file object over an object of a cache, or an export of a server."""

import io
import os
from typing import Any

# The bytes that a search for the end of a line reads at a time.
_LINE_BYTES = 4096


class OctavoFile(io.RawIOBase):
    """A seekable binary file, for programs that take file objects: h5py, pyarrow, zipfile.

    `source` is an `octavo.Object` or an `octavo.Remote`. Several files may read one source, each
    at its own place. There is no buffer: every read goes to the cache. A file that writes cannot
    grow its source; `truncate` of an `Object` does.

    With `close_source`, closing the file closes the source, too.
    """

    def __init__(self, source: Any, mode: str = "rb", *, close_source: bool = False) -> None:
        if mode not in ("rb", "r+b", "rb+"):
            raise ValueError(f"mode is {mode!r}: 'rb' or 'r+b' is needed")
        if mode != "rb" and source.read_only:
            raise io.UnsupportedOperation(f"{source.name}: cannot write: it is open read-only")
        super().__init__()
        self._source = source
        self._writes = mode != "rb"
        self._closes = close_source
        self._at = 0
        self.mode = "rb" if mode == "rb" else "rb+"

    @property
    def name(self) -> str:
        """The source's name."""
        return self._source.name

    @property
    def size(self) -> int:
        """The source's length in bytes."""
        return self._source.size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return self._writes

    def tell(self) -> int:
        self._check()
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check()
        if whence == os.SEEK_CUR:
            offset += self._at
        elif whence == os.SEEK_END:
            offset += self._source.size
        elif whence != os.SEEK_SET:
            raise ValueError(f"whence is {whence}: 0, 1 or 2 is needed")
        if offset < 0:
            raise ValueError(f"cannot seek to {offset}, before the beginning")
        self._at = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        self._check()
        count = self._source.read_into(buffer, self._at)
        self._at += count
        return count

    def read(self, size: int | None = -1) -> bytes:
        self._check()
        if size is None or size < 0:
            size = max(self._source.size - self._at, 0)
        data = self._source.read(size, self._at)
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    read1 = read

    def readline(self, size: int | None = -1) -> bytes:
        # The one of RawIOBase reads byte by byte.
        self._check()
        line = bytearray()
        while size is None or size < 0 or len(line) < size:
            more = self._source.read(_LINE_BYTES, self._at + len(line))
            end = more.find(b"\n") + 1
            line += more[: end or None]
            if end or not more:
                break
        if size is not None and size >= 0:
            del line[size:]
        self._at += len(line)
        return bytes(line)

    def pread(self, size: int, offset: int) -> bytes:
        """Read without moving the file's place, as `os.pread`."""
        self._check()
        return self._source.read(size, offset)

    def write(self, data: Any) -> int:
        self._check()
        if not self._writes:
            raise io.UnsupportedOperation("write")
        room = self._source.size - self._at
        with memoryview(data) as view, view.cast("B") as data_bytes:
            # As files do that are full: what fits is written, then the error comes.
            with data_bytes[: max(room, 0)] as fits:
                if data_bytes.nbytes and not fits.nbytes:
                    raise OSError(27, f"{self.name}: the file cannot grow by a write; see truncate")
                count = self._source.write(fits, self._at)
        self._at += count
        return count

    def truncate(self, size: int | None = None) -> int:
        self._check()
        if not self._writes or not hasattr(self._source, "truncate"):
            raise io.UnsupportedOperation("truncate")
        size = self._at if size is None else size
        self._source.truncate(size)
        return size

    def flush(self) -> None:
        """Do nothing: writes are in the cache. `sync` makes them durable."""
        super().flush()

    def sync(self) -> None:
        """Make all acknowledged writes durable."""
        self._check()
        self._source.sync()

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._closes:
                self._source.close()

    def __reduce__(self):
        # A source that cannot move says so.
        return _reopened, (self._source, self.mode, self._closes, self.tell())

    def _check(self):
        if self.closed:
            raise ValueError("I/O operation on closed file")


def _reopened(source, mode, closes, at):
    file = OctavoFile(source, mode, close_source=closes)
    file.seek(at)
    return file
