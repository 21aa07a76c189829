"""The exceptions, which the compiled part raises by their names."""


class Error(Exception):
    """Every exception of this package, except those of files that cannot be opened."""


class IoError(Error, OSError):
    """The store or the connection failed; `errno` says how."""


class ReadOnlyError(Error, OSError):
    """A write of an object that was opened read-only; `errno` is EROFS."""


class PastEndError(Error, ValueError):
    """The range ends behind the object's end."""


class ClosedError(Error, ValueError):
    """The object or the cache was closed."""


class ConfigError(Error, ValueError):
    """An argument or a setting is invalid; the sentence says what is allowed."""


class NoMemoryError(Error, MemoryError):
    """A limit leaves no room."""


class ForkedError(Error, RuntimeError):
    """The process is a child of fork, and its parent made the cache."""
