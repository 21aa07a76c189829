"""Simulations of caches over arrays of page numbers, for notebooks."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from octavo import _octavo


Progress = Callable[[str, int, float | None], object]


def simulate(
    pages: Any,
    capacities: int | str | Iterable[int | str],
    policies: str | Iterable[str] = "octavo",
    *,
    ways: int = 16,
    page_bytes: int = 4096,
    seed: int = 0,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Run caches over `pages`, an array of page numbers in the order of their accesses.

    `capacities` and `policies` are one value or several. A capacity is a number of pages, or text:
    a share of the different pages ("10%"), or bytes ("1GiB"). A policy is a name of
    `octavo.policies()`, or "engine", "reference" or "all".

    Returns a dict for each cache. `progress(step, requests, share)` is called ten times a second;
    an exception that it raises ends the run, and so does Ctrl-C. The array must not change
    meanwhile.
    """
    texts = [f"{one}p" if isinstance(one, int) else str(one) for one in _several(capacities)]
    return _octavo.simulate(
        _numbers(pages),
        capacities=texts,
        policies=_several(policies),
        ways=ways,
        page_bytes=page_bytes,
        seed=seed,
        jobs=jobs or len(os.sched_getaffinity(0)),
        progress=progress,
    )


def mrc(
    pages: Any,
    policies: str | Iterable[str] = "lru",
    *,
    method: str | None = None,
    ways: int = 16,
    points: int = 50,
    samples: int | None = None,
    rate: float | None = None,
    page_bytes: int = 4096,
    seed: int = 0,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Make miss-ratio curves of `pages`, an array of page numbers.

    Returns a dict for each policy, with the arrays `capacity_pages`, `miss_ratio` and `error` (half
    the length of the error bar; NaN where a sample cannot tell). `method` is "exact" (the default
    for LRU), "shards", "shards-size", or "miniature" (for any policy).
    """
    names = _several(policies)
    if method is None:
        method = "exact" if set(names) <= {"lru", "global-lru"} else "miniature"
    curves = _octavo.mrc(
        _numbers(pages),
        method=method,
        policies=names,
        ways=ways,
        points=points,
        samples=samples,
        rate=rate,
        page_bytes=page_bytes,
        seed=seed,
        jobs=jobs or len(os.sched_getaffinity(0)),
        progress=progress,
    )
    return [_arrays(curve) for curve in curves]


def _arrays(curve):
    """Turn the lists of a curve into arrays."""
    import numpy

    for name, values in curve.items():
        if isinstance(values, list):
            kind = numpy.uint64 if name in ("pages", "capacity_pages") else numpy.float64
            curve[name] = numpy.array(values, kind)
    return curve


def _several(one_or_more):
    if isinstance(one_or_more, (str, int, float)):
        return [one_or_more]
    return list(one_or_more)


def _numbers(pages):
    """Return the pages as contiguous integers of 64 bits, without a copy if they are that."""
    view = _view(pages)
    if view is not None and view.c_contiguous and view.itemsize == 8 and view.format in ("Q", "L"):
        return view
    import numpy

    array = numpy.asarray(pages)
    if array.dtype.kind not in "ui":
        raise TypeError(f"page numbers are integers, not {array.dtype}")
    if array.dtype.kind == "i" and array.size and array.min() < 0:
        raise ValueError("page numbers are not negative")
    return numpy.ascontiguousarray(array.ravel(), numpy.uint64)


def _view(pages):
    try:
        return memoryview(pages)
    except TypeError:
        return None
