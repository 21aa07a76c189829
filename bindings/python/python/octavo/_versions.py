"""Whose bytes of a remote file are cached, and of which version.

fsspec names a file by its path alone. Pages belong to more than that: to one set of credentials at
one endpoint (`scope`), and to one version of the file (`find`). Every answer that fills pages must
be of that version (`fetcher`); an answer of another version is an error, never a page.

Not here: pages and open files (`_shared.py`), and local files, whose versions are their times.
"""

import asyncio
import errno
import hashlib
import inspect
import itertools
import os
import sys
from typing import NamedTuple

from fsspec.asyn import sync
from fsspec.spec import AbstractFileSystem
from fsspec.utils import tokenize

from octavo._errors import IoError

# The most requests for the same bytes, if answers are cut off or are not what was asked for.
_ATTEMPTS = 4

# The attribute of a file system that keeps its scope, with the client that the scope belongs to.
_SCOPE = "_octavo_scope"

_instances = itertools.count()


class Version(NamedTuple):
    """What a file is now."""

    # Equal for equal content only; None if nothing can tell.
    identity: object
    # In bytes; None if the file system does not know.
    size: int | None
    # The answer of the other file system. None for local files.
    info: dict | None = None


def changed(path):
    """The error of a reader whose file was replaced or removed since it was opened."""
    return IoError(errno.ESTALE, f"{path}: the file has changed since it was opened")


# Scopes.


def scope(fs):
    """Return a hash of what decides whose files these are: the kind of the file system, the
    endpoint, and the credentials.

    A file system may take credentials from its environment, which its options do not tell. Those
    of S3 are asked for; other file systems are told apart by their options.
    """
    client = fs.s3 if _is_of(fs, "s3fs", "S3FileSystem") else None
    known = getattr(fs, _SCOPE, None)
    # The client is a new one after `connect(refresh=True)`, which may find other credentials.
    if known is None or known[0] is not client:
        kind = f"{type(fs).__module__}.{type(fs).__qualname__}"
        parts = [kind, _text([fs.storage_args, fs.storage_options]), _s3_scope(fs, client)]
        if parts[1] is None:
            # An option is an object whose text may hide secrets, or may be that of another object
            # later. Only this instance is known to be itself.
            parts[1] = f"instance {next(_instances)}"
        known = (client, hashlib.sha256("\0".join(parts).encode()).hexdigest())
        setattr(fs, _SCOPE, known)
    return known[1]


def _s3_scope(fs, client):
    """Return the endpoint, and the key that the environment or a configuration file gave."""
    if client is None:
        return ""
    if fs.anon or fs.key or fs.client_kwargs.get("aws_access_key_id"):
        return client.meta.endpoint_url

    async def access_key():
        found = await fs.session.get_credentials()
        return found and (await found.get_frozen_credentials()).access_key

    return f"{client.meta.endpoint_url} {sync(fs.loop, access_key)}"


def _text(option):
    """Return a text that only equal options have; None if there is none."""
    # Not subclasses: their texts may be anything.
    if option is None or type(option) in (bool, int, float, str, bytes):
        return repr(option)
    if isinstance(option, os.PathLike):
        return repr(os.fspath(option))
    if isinstance(option, AbstractFileSystem):
        return scope(option)
    if isinstance(option, dict):
        option = sorted(option.items(), key=lambda item: repr(item[0]))
    elif not isinstance(option, (list, tuple)):
        return None
    texts = [_text(one) for one in option]
    return None if None in texts else f"[{','.join(texts)}]"


def _is_of(fs, module, name):
    """Whether the file system has this class, without importing its module."""
    found = getattr(sys.modules.get(module), name, None)
    return found is not None and isinstance(fs, found)


# Versions.


def find(fs, path):
    """Ask a file system what a remote file is now.

    # Errors
    `IsADirectoryError`, and what `info` of the file system raises.
    """
    info = _info(fs, path)
    if info.get("type") == "directory":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    size = info.get("size")
    if _is_of(fs, "s3fs", "S3FileSystem") and info.get("ETag"):
        return Version((info["ETag"], size), size, info)
    told = tokenize(sorted((key, str(value)) for key, value in info.items()))
    if type(fs).ukey is not AbstractFileSystem.ukey:
        told += str(fs.ukey(path))
    return Version((told, size), size, info)


def _info(fs, path):
    """Return `info` from the server, not from a listing that the file system has kept."""
    asked = inspect.signature(getattr(fs, "_info", fs.info)).parameters
    if "refresh" in asked:
        return fs.info(path, refresh=True)
    fs.invalidate_cache(path)
    return fs.info(path)


# Answers.


def fetcher(fs, path, version, now):
    """Return `fetch(offset, length)`, which returns bytes of this version, or raises.

    Answers of S3 and of HTTP servers name their versions. For any other file system, `now()`
    returns what the file is after each answer.
    """
    if _is_of(fs, "s3fs", "S3FileSystem") and version.info.get("ETag"):
        return _retried(fs, path, _s3_get(fs, path, version), _s3_errors())
    if _is_of(fs, "fsspec.implementations.http", "HTTPFileSystem"):
        told = {name: version.info[name] for name in _HTTP_NAMES if name in version.info}
        if told:
            return _retried(fs, path, _http_get(fs, path, version, told), _http_errors())

    def fetch(offset, length):
        data = fs.cat_file(path, start=offset, end=offset + length)
        if now().identity != version.identity:
            raise changed(path)
        return data

    return fetch


# The answers of HTTP to a reader of another version: the file is missing; it is not what If-Match
# names; the range is past its end.
_CHANGED = (404, 412, 416)


class _WrongAnswer(OSError):
    """An answer that is not what was asked for."""


def _retried(fs, path, get, errors):
    async def fetch(begin, end):
        for attempt in itertools.count(1):
            try:
                data = await get(begin, end)
                if len(data) != end - begin:
                    raise _WrongAnswer(
                        errno.EIO, f"{path}: {len(data)} bytes came instead of {end - begin}"
                    )
                return data
            except (_WrongAnswer, *errors):
                if attempt == _ATTEMPTS:
                    raise
                await asyncio.sleep(0.1 * 2**attempt)

    return lambda offset, length: sync(fs.loop, fetch, offset, offset + length)


def _check_range(path, told, begin, end, size):
    """Check the header Content-Range, which only an answer with the whole file may lack."""
    if told is None and (begin, end) == (0, size):
        return
    if told not in (f"bytes {begin}-{end - 1}/{size}", f"bytes {begin}-{end - 1}/*"):
        asked = f"bytes {begin}-{end - 1} of {size}"
        raise _WrongAnswer(errno.EIO, f"{path}: {told!r} came instead of {asked}")


def _s3_errors():
    checksums = sys.modules["botocore.exceptions"].FlexibleChecksumError
    return (*sys.modules["s3fs.core"].S3_RETRYABLE_ERRORS, checksums)


def _s3_get(fs, path, version):
    bucket, key, version_id = fs.split_path(path)
    etag, size = version.identity
    wanted = {"Bucket": bucket, "Key": key}
    if version_id:
        wanted["VersionId"] = version_id
    if not fs.local_expiry_check:
        wanted["IfMatch"] = etag

    async def get(begin, end):
        try:
            answer = await fs._call_s3("get_object", Range=f"bytes={begin}-{end - 1}", **wanted)
        except OSError as error:
            response = getattr(error.__cause__, "response", {})
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            raise changed(path) if status in _CHANGED else error
        try:
            # Servers that do not know If-Match send whatever version they have.
            if answer.get("ETag") != etag:
                raise changed(path)
            _check_range(path, answer.get("ContentRange"), begin, end, size)
            return await answer["Body"].read()
        finally:
            answer["Body"].close()

    return get


# The headers of HTTP that fsspec keeps, and that every answer of one version has.
_HTTP_NAMES = ("ETag", "Last-Modified")


def _http_errors():
    aiohttp = sys.modules["aiohttp"]
    return (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, TimeoutError)


def _http_get(fs, path, version, told):
    async def get(begin, end):
        session = await fs.set_session()
        options = dict(fs.kwargs)
        headers = {
            **options.pop("headers", {}),
            "Range": f"bytes={begin}-{end - 1}",
            # A compressed answer has other bytes.
            "Accept-Encoding": "identity",
        }
        async with session.get(fs.encode_url(path), headers=headers, **options) as answer:
            if answer.status in _CHANGED:
                raise changed(path)
            answer.raise_for_status()
            if any(answer.headers.get(name) != value for name, value in told.items()):
                raise changed(path)
            _check_range(path, answer.headers.get("Content-Range"), begin, end, version.size)
            return await answer.read()

    return get
