"""Making a handle fails with its reason, or works, whichever of its system calls fails.

Guards against handles that are half there: threads, rings, contexts and descriptors left behind by
a constructor, and an engine that is given up although another would do (F-05, F-06).
"""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import aio
from support.faulty_example import attempt, explained, nothing_kept
from support.faulty_schedules import ALL_CALLS, Schedule, faults
from support.faulty_watch import watch
from support.faulty_workload import still_works

pytest_plugins = ["support.faulty_process"]

ERRNOS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.EPERM, errno.ENOSYS, errno.EINVAL)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_call_of_construction_fails(disk: Path, backend: str, workers: int) -> None:
    for schedule in failures_of_each_call(backend, workers):
        watch()
        with nothing_kept(), schedule.installed():
            handle, error = made(backend, workers)
            if error is not None:
                explained(error, faults.report())
                assert backend in str(error) or "thread" in str(error)
                continue
            faults.clear()
            with handle:
                still_works(handle, disk)


def test_another_engine_where_one_cannot_be_had(disk: Path) -> None:
    available = aio.available_backends()
    for schedule in failures_of_each_call("auto", 2):
        watch()
        with nothing_kept(), schedule.installed():
            handle, error = made("auto", 2)
            if error is not None:
                explained(error, faults.report())
                # Without threads no engine helps.
                assert "clone" in {call for call, _ in faults.report()["failed_calls"]}
                continue
            faults.clear()
            with handle:
                assert handle.backend in available
                still_works(handle, disk)


def test_probing_reports_what_fails() -> None:
    with nothing_kept(), Schedule(engines=False).installed():
        usable = aio.available_backends()
        calls = faults.report()["calls"]
    for number in range(len(calls)):
        with nothing_kept(), Schedule(calls=(("*", number, 1, errno.EMFILE),)).installed():
            left = aio.available_backends()
            ((call, _),) = faults.report()["failed_calls"]
        assert set(left) < set(usable), f"{call} failed, and no engine minds"
        assert len(left) == len(usable) - 1


def made(backend: str, workers: int) -> tuple[Any, Any]:
    """A handle, or the reason why there is none."""
    make = partial(aio.aio_handle, backend=backend, intra_op_parallelism=workers)
    return attempt(make, RuntimeError)


def failures_of_each_call(backend: str, workers: int) -> list[Schedule]:
    """One schedule for each call of a construction, errno, and how long it goes on failing."""
    with nothing_kept(), Schedule(engines=False).installed():
        aio.aio_handle(backend=backend, intra_op_parallelism=workers).close()
        calls = faults.report()["calls"]
    assert calls.count("clone") >= workers
    return [
        Schedule(calls=(("*", number, count, error),), engines=False)
        for number in range(len(calls))
        for error in ERRNOS
        for count in (1, ALL_CALLS)
    ]
