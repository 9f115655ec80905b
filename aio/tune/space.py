"""Which options are tried: the usual ones, or those of a sweep file."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aio.backends import BACKENDS
from aio.measure.command import UsageError
from aio.measure.sizes import parse_size
from aio.options import HandleOptions

BLOCK_SIZES = (256 << 10, 1 << 20, 2 << 20, 8 << 20)
QUEUE_DEPTHS = (8, 32, 128)
WORKERS = (1, 2, 4, 8)

DEFAULTS = HandleOptions()
MOST = 100_000  # combinations of a sweep file: no drive has the time for more


class SweepError(UsageError):
    """A sweep file that says something that cannot be tried."""


def usual_options(backend: str) -> list[HandleOptions]:
    """Block sizes, depths and workers that suit drives; workers as there are processors to use."""
    workers = [count for count in WORKERS if count <= max(2, os.cpu_count() or 1)]
    return [
        replace(
            DEFAULTS,
            block_size=block_size,
            queue_depth=queue_depth,
            intra_op_parallelism=count,
            backend=backend,
        )
        for block_size, queue_depth, count in itertools.product(BLOCK_SIZES, QUEUE_DEPTHS, workers)
    ]


def variants(options: HandleOptions, backends: Sequence[str]) -> list[HandleOptions]:
    """The same with one of the options changed that seldom matter: a second look at the best."""
    others = [replace(options, backend=name) for name in backends if name != options.backend]
    return [
        *others,
        replace(options, single_submit=not options.single_submit),
        replace(options, overlap_events=not options.overlap_events),
    ]


def peculiarity(options: HandleOptions, default: HandleOptions) -> int:
    """How many of those options differ."""
    names = ("backend", "single_submit", "overlap_events")
    return sum(getattr(options, name) != getattr(default, name) for name in names)


def sweep_options(path: str, backend: str) -> list[HandleOptions]:
    """Every combination of a sweep file of DeepSpeed: JSON, each option with a list of values.

    Besides DeepSpeed's ``sequential_requests`` and ``io_parallel`` the names of aio_handle are
    taken. Raises OSError, or SweepError with what the file has and what it may have.
    """
    try:
        document = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise SweepError(f"{path} is no sweep file: {error}") from error
    if not isinstance(document, Mapping) or not document:
        raise SweepError(f"{path} must be an object such as {{'block_size': ['1M', '8M']}}")
    columns = [_column(path, name, values) for name, values in document.items()]
    names = [name for name, _ in columns]
    if len(set(names)) < len(names):
        raise SweepError(f"{path} gives an option twice, under both of its names")
    combinations = math.prod(len(values) for _, values in columns)
    if combinations > MOST:
        raise SweepError(f"{path} has {combinations} combinations, but at most {MOST} can be tried")
    base = replace(DEFAULTS, backend=backend)
    products = itertools.product(*(values for _, values in columns))
    return unique(replace(base, **dict(zip(names, row, strict=True))) for row in products)


def unique(candidates: Iterable[HandleOptions]) -> list[HandleOptions]:
    """Each once, in the order of their first mention."""
    return list(dict.fromkeys(candidates))


def without_twins(candidates: Iterable[HandleOptions], nbytes: int) -> list[HandleOptions]:
    """Without those that differ only by a depth that a request of ``nbytes`` cannot fill."""
    seen: dict[HandleOptions, HandleOptions] = {}
    for options in candidates:
        at_most = -(-nbytes // (options.block_size * options.intra_op_parallelism))
        reached = replace(options, queue_depth=min(options.queue_depth, at_most))
        seen[reached] = min(seen.get(reached, options), options, key=_depth)
    return unique(seen.values())


def spread(candidates: Sequence[HandleOptions], count: int) -> list[HandleOptions]:
    """At most ``count`` of them, without preference; the same ones each time."""
    if len(candidates) <= count:
        return list(candidates)
    chosen = random.Random(0).sample(range(len(candidates)), max(count, 1))
    return [candidates[index] for index in sorted(chosen)]


def _depth(options: HandleOptions) -> int:
    return options.queue_depth


def _size(value: Any) -> int:
    return parse_size(value) if isinstance(value, str) else _positive(value)


def _positive(value: Any) -> int:
    if type(value) is int and value > 0:
        return value
    raise ValueError(f"{value!r} is no number from 1 on")


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"{value!r} is neither true nor false")


def _backend(value: Any) -> str:
    named = BACKENDS[1:]  # not "auto": a combination is of one engine
    if value in named:
        return str(value)
    raise ValueError(f"{value!r} is none of {', '.join(named)}")


_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "block_size": ("block_size", _size),
    "queue_depth": ("queue_depth", _positive),
    "io_parallel": ("intra_op_parallelism", _positive),
    "intra_op_parallelism": ("intra_op_parallelism", _positive),
    "single_submit": ("single_submit", _switch),
    "sequential_requests": ("overlap_events", lambda value: not _switch(value)),
    "overlap_events": ("overlap_events", _switch),
    "backend": ("backend", _backend),
}


def _column(path: str, name: str, values: Any) -> tuple[str, list[Any]]:
    if name not in _READERS:
        raise SweepError(f"{path} has {name!r}, but may have {', '.join(_READERS)}")
    option, read = _READERS[name]
    if not isinstance(values, list) or not values:
        raise SweepError(f"{path} has {name} {values!r}, but it must be a list of values")
    try:
        return option, [read(value) for value in values]
    except (TypeError, ValueError) as error:
        raise SweepError(f"{path}: {name}: {error}") from error
