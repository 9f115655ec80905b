"""An engine that fails for good: every operation ends, none is said to have moved what it did not.

Guards against hangs, and against memory that the kernel may still write to being given to others.
"""

from __future__ import annotations

import errno
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aio
from support.counters import held_now, until
from support.faulty_schedules import (
    ALL_CALLS,
    ENGINE_SCHEDULES,
    PHASES,
    REAP_CALLS,
    Schedule,
    faults,
    injected_errnos,
)
from support.faulty_watch import watch
from support.faulty_workload import OPTIONS, WORKLOADS, Draw, Workload, still_works
from support.sanitizers import examples

pytest_plugins = ["support.faulty_process"]

EXAMPLES = examples(15)  # each leaves the staging blocks of its workers behind, as it must

# The posix engine has no call that could fail at reaping.
in_the_kernel = pytest.mark.parametrize("backend", ["io_uring", "libaio"], indirect=True)


@in_the_kernel
@settings(max_examples=EXAMPLES, phases=PHASES)
@given(options=OPTIONS, schedule=ENGINE_SCHEDULES, draws=WORKLOADS, dies_after=st.integers(0, 20))
def test_engine_that_dies(
    disk: Path,
    backend: str,
    options: dict[str, Any],
    schedule: Schedule,
    draws: list[Draw],
    dies_after: int,
) -> None:
    watch()
    before = held_now()
    with tempfile.TemporaryDirectory(dir=disk) as name:
        root = Path(name)
        workload = Workload(root, draws)
        with replace(schedule, dies_after=dies_after).installed():
            handle = aio.aio_handle(backend=backend, **options)
            workload.run(handle)
            workload.check()
            workload.check_counts(handle)
            handle.close()
            report = faults.report()
            # Whatever the kernel did meanwhile, it did in memory that was still there.
            workload.check()
    allowed = injected_errnos(report) | {errno.EIO}
    assert {one.error.errno for one in workload.operations if one.error is not None} <= allowed
    assert report["unmapped"] == 0
    # The memory of what was in flight is kept on purpose, all else is not.
    until(lambda: held_now().threads <= before.threads, "threads ended")
    until(lambda: held_now().descriptors <= before.descriptors, "descriptors closed")


@in_the_kernel
def test_handle_of_a_dead_engine_says_so(disk: Path, backend: str) -> None:
    path = disk / "file"
    path.write_bytes(bytes(1 << 20))
    with Schedule(dies_after=0).installed(), aio.aio_handle(backend=backend) as handle:
        for _ in range(2):
            watch()
            handle.async_pread(bytearray(1 << 20), path)
            with pytest.raises(aio.AioError, match="failed for good") as caught:
                handle.wait()
            assert caught.value.errno == errno.EIO
            assert caught.value.nbytes_done == 0
            assert handle.wait() == 0
    assert faults.report()["unmapped"] == 0


@in_the_kernel
def test_answers_that_can_never_be_had(disk: Path, backend: str) -> None:
    """The call that brings them fails for ever: each request ends with its errno, later ones of
    this handle too; another handle works.
    """
    path = disk / "file"
    path.write_bytes(bytes(1 << 20))
    calls = tuple((call, 0, ALL_CALLS, errno.EIO) for call in REAP_CALLS)
    with aio.aio_handle(backend=backend) as handle:
        with Schedule(calls=calls, engines=False).installed():
            for _ in range(2):
                watch()
                handle.async_pread(bytearray(1 << 20), path)
                with pytest.raises(aio.AioError) as caught:
                    handle.wait()
                assert caught.value.errno == errno.EIO
                assert caught.value.nbytes_done == 0
                assert handle.wait() == 0
        with aio.aio_handle(backend=backend) as other:
            still_works(other, disk)
