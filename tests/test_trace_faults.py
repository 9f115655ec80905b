"""A trace shows what went wrong: short transfers, retries, errors, each with its request."""

from __future__ import annotations

import errno
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aio
from support.buffers import shifted
from support.faulty_schedules import ENGINE_SCHEDULES, PHASES, Schedule
from support.faulty_watch import watch
from support.faulty_workload import DRAWS, OPTIONS, Workload
from support.in_flight import sparse
from support.sanitizers import examples
from support.traces import check_flows, check_stats, check_tracks, read_trace

pytest_plugins = ["support.faulty_process"]

_numbers = itertools.count()


def run_one(directory: Path, backend: str, schedule: Schedule, fails: bool) -> Any:
    """The transfers of one read of 64 KiB in blocks of 16 KiB, and the statistics."""
    path = sparse(directory / "file", 65536)
    target = directory / "trace.json"
    with schedule.installed():
        handle = aio.aio_handle(16384, 1, backend=backend, trace=target)
        handle.async_pread(shifted(65536, 0), path)
        if fails:
            with pytest.raises(aio.AioError):
                handle.wait()
        else:
            assert handle.wait() == 1
        handle.close()
    trace = read_trace(target)
    check_tracks(trace)
    check_stats(trace, handle.stats())
    return sorted((one["args"] for one in trace.transfers), key=lambda args: args["offset"])


def test_short_transfers_and_retries(disk: Path, backend: str) -> None:
    fates = (4096, 8192, -errno.EINTR, -errno.EAGAIN)
    first, *rest = run_one(disk, backend, Schedule(fates=fates), False)
    assert (first["offset"], first["bytes"], first["done"]) == (0, 16384, 16384)
    assert (first["short"], first["retries"], first["errno"]) == (2, 2, 0)
    assert [(one["short"], one["retries"]) for one in rest] == [(0, 0)] * 3


def test_an_error(disk: Path, backend: str) -> None:
    """The transfer that failed says so; those that never started are not there."""
    schedule = Schedule(fates=(2**62, 4096, -errno.EIO))
    good, bad = run_one(disk, backend, schedule, True)
    assert (good["errno"], good["done"]) == (0, 16384)
    assert (bad["offset"], bad["errno"], bad["done"], bad["short"]) == (16384, errno.EIO, 4096, 1)


def test_direct_io_refused(disk: Path, backend: str) -> None:
    transfers = run_one(disk, backend, Schedule(refuse_direct=True), False)
    assert [one["way"] for one in transfers] == ["buffered"] * 4
    assert transfers[0]["retries"] in (0, 1)  # 0 where the drive takes no direct I/O


@settings(max_examples=examples(15), phases=PHASES)
@given(draws=st.lists(DRAWS, min_size=1, max_size=5), options=OPTIONS, schedule=ENGINE_SCHEDULES)
def test_counts_under_faults(
    tmp_path: Path, backend: str, draws: Any, options: Any, schedule: Schedule
) -> None:
    """Whatever the engine does, what has moved is in the trace once, and so is what failed."""
    watch()
    root = tmp_path / f"{next(_numbers)}"
    root.mkdir()
    workload = Workload(root, draws)
    target = root / "trace.json"
    with schedule.installed():
        handle = aio.aio_handle(**options, backend=backend, trace=target)
        workload.run(handle)
        stats: Any = handle.stats()
        handle.close()
    trace = read_trace(target)
    check_tracks(trace)
    check_flows(trace)
    check_stats(trace, stats)
    failed = {one["args"]["request"] for one in trace.transfers if one["args"]["errno"] != 0}
    assert len(failed) == stats["failed"]
    moved = Counter[str]()
    for one in trace.transfers:
        moved[one["name"]] += one["args"]["bytes"] if one["args"]["errno"] == 0 else 0
    for operation in workload.operations:
        if operation.error is None:
            kind = "write" if operation.draw.write else "read"
            moved[kind] -= operation.nbytes
    assert min(moved.values(), default=0) >= 0
