"""One example of a fault-injection test, from a fresh handle to everything given back."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import _deepnvme
import aio
import support.torch_threads  # noqa: F401
from support.counters import Held, held_now, until
from support.faulty_schedules import Schedule, faults
from support.faulty_watch import watch
from support.faulty_workload import OPTIONS, WORKLOADS, Draw, Workload, still_works

Report = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """Operations, the options of their handle, and a schedule that has things go wrong."""

    options: dict[str, Any]
    schedule: Schedule
    draws: list[Draw]


def examples_with(schedules: st.SearchStrategy[Schedule]) -> st.SearchStrategy[Example]:
    """Any operations through any handle."""
    return st.builds(Example, options=OPTIONS, schedule=schedules, draws=WORKLOADS)


def run_example(
    directory: Path, backend: str, example: Example, judge: Callable[[Workload, Report], None]
) -> None:
    """Run the operations of `example` while things go wrong.

    `judge` says whether those that failed may, for the reasons that they give.  All else holds
    after every schedule: bytes, counts, a handle that works, and nothing kept.
    """
    watch()
    with tempfile.TemporaryDirectory(dir=directory) as name, nothing_kept():
        _use(Path(name), backend, example, judge)


def attempt(call: Callable[[], Any], *kinds: type[Exception]) -> tuple[Any, Any]:
    """What `call` returns and None, or None and its exception, if that is of `kinds`."""
    try:
        return call(), None
    except kinds as error:
        return None, error


@contextmanager
def nothing_kept() -> Iterator[None]:
    """After the block the process holds what it held before the first of these blocks, or less.

    Before the first and not before this one: the kernel may be late to end a thread of the last.
    """
    before = _first_look()
    yield
    gc.collect()  # an AioError lists itself, and its traceback has the buffers
    stats = _deepnvme.pin.stats()
    assert (stats["in_use"], stats["regions"]) == (0, 0)
    _deepnvme.pin.empty_cache()
    assert _deepnvme.pin.stats()["cached"] == 0

    def back() -> bool:
        now = held_now()
        return all(getattr(now, name) <= getattr(before, name) for name in before.__dict__)

    try:
        until(back, "everything given back")
    except AssertionError:
        raise AssertionError(f"not given back: {before} -> {held_now()}") from None


@cache
def _first_look() -> Held:
    return held_now()


def _use(
    root: Path, backend: str, example: Example, judge: Callable[[Workload, Report], None]
) -> None:
    workload = Workload(root, example.draws)
    make = partial(aio.aio_handle, backend=backend, **example.options)
    with example.schedule.installed():
        handle, error = attempt(make, RuntimeError)
        if error is not None:
            explained(error, faults.report())
            return
        with handle:
            workload.run(handle)
            faults.clear()
            report = faults.report()
            workload.check_counts(handle)
            workload.check()
            judge(workload, report)
            still_works(handle, root)


def explained(error: Exception, report: Report) -> None:
    """The message has the reason of a call that was made to fail."""
    reasons = [os.strerror(number) for _, number in report["failed_calls"]]
    assert any(reason in str(error) for reason in reasons), (str(error), reasons)
