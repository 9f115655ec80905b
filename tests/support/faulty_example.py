"""One example of a fault-injection test, from a fresh handle to everything given back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _deepnvme
import aio
from support.counters import counters
from support.faulty_schedules import Schedule, faults
from support.faulty_watch import watch
from support.faulty_workload import Draw, Workload, still_works

Report = dict[str, Any]


def run_example(
    directory: Path,
    backend: str,
    options: dict[str, Any],
    schedule: Schedule,
    draws: list[Draw],
    judge: Callable[[Workload, Report], None],
) -> None:
    """Run the operations of `draws` while `schedule` has things go wrong.

    `judge` says whether those that failed may, for the reasons that they give.  All else holds
    after every schedule: bytes, counts, a handle that works, and nothing kept.
    """
    watch()
    with tempfile.TemporaryDirectory(dir=directory) as name, counters():
        pinned = _pinned()
        _use(Path(name), backend, options, schedule, draws, judge)
        assert _pinned() == pinned


def _pinned() -> tuple[int, int]:
    stats = _deepnvme.pin.stats()
    return stats["in_use"], stats["regions"]


def _use(
    root: Path,
    backend: str,
    options: dict[str, Any],
    schedule: Schedule,
    draws: list[Draw],
    judge: Callable[[Workload, Report], None],
) -> None:
    workload = Workload(root, draws)
    with schedule.installed():
        try:
            handle = aio.aio_handle(backend=backend, **options)
        except RuntimeError as error:
            _explained(error, faults.report())
            return
        with handle:
            workload.run(handle)
            faults.clear()
            report = faults.report()
            workload.check_counts(handle)
            workload.check()
            judge(workload, report)
            still_works(handle, root)


def _explained(error: RuntimeError, report: Report) -> None:
    """The handle could not be made because of a call that failed, and says so."""
    reasons = [os.strerror(number) for _, number in report["failed_calls"]]
    assert any(reason in str(error) for reason in reasons), (str(error), reasons)
