"""Whatever system call of a request fails, and however often, the request is done or says why not.

Guards against calls whose failure is overlooked or reported as another one, and against what is
kept after it: descriptors, threads, memory, regions, the handle itself (E-24).
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import _deepnvme
import aio
from support.buffers import tensor_of
from support.counters import status_kb
from support.faulty_example import (
    Example,
    Report,
    attempt,
    examples_with,
    explained,
    nothing_kept,
    run_example,
)
from support.faulty_schedules import (
    ALL_CALLS,
    CALL_SCHEDULES,
    PHASES,
    Schedule,
    faults,
    injected_errnos,
)
from support.faulty_watch import watch
from support.faulty_workload import Workload, still_works
from support.sanitizers import examples

pytest_plugins = ["support.faulty_process"]

EXAMPLES = examples(60)


@settings(max_examples=EXAMPLES, phases=PHASES)
@given(example=examples_with(CALL_SCHEDULES))
def test_some_calls_fail(directory: Path, backend: str, example: Example) -> None:
    run_example(directory, backend, example, only_with_injected_errnos)


def only_with_injected_errnos(workload: Workload, report: Report) -> None:
    """A failure carries the errno of something that was made to fail; without any, none failed."""
    allowed = injected_errnos(report)
    for operation in workload.operations:
        if operation.error is not None:
            assert operation.error.errno in allowed, (operation.error, report["failed_calls"])


def test_each_call_of_a_session_fails_once(disk: Path, backend: str) -> None:
    """The n-th system call fails, for every n that there is."""
    calls = session(disk, backend, Schedule(engines=False))
    assert {"open", "statx", "mmap", "madvise", "fcntl", "fallocate"} <= set(calls)
    for number in range(len(calls)):
        for error in (errno.EIO, errno.EMFILE, errno.EINVAL, errno.EINTR):
            watch()
            with nothing_kept():
                session(disk, backend, Schedule(calls=(("*", number, 1, error),), engines=False))


def session(root: Path, backend: str, schedule: Schedule) -> list[str]:
    """Requests of every kind; the system calls that they made."""
    size = 300_001
    data, new = bytes(range(256)) * 1172, bytes(reversed(range(256))) * 1172
    data, new = data[:size], new[:size]
    (root / "old").write_bytes(data)
    (root / "new").unlink(missing_ok=True)
    handle = aio.aio_handle(backend=backend, block_size=65536)
    with handle:
        with schedule.installed():
            targets = [bytearray(size) for _ in range(3)]
            _try(lambda: handle.sync_pwrite(new, root / "new"))
            written = _try(lambda: handle.write(new, root / "new", True)) is not None
            _try(lambda: handle.sync_pread(targets[0], root / "old"), targets[0], data)
            unaligned = tensor_of(bytes(size + 1))[1:]
            _try(lambda: handle.sync_pread(unaligned, root / "old"), unaligned.numpy(), data)
            items = [(target, root / "old") for target in targets[1:]]
            _try(lambda: handle.pread_many(items), targets[1], data)
            small = bytearray(100)
            with open(root / "old", "rb") as file:
                _try(lambda: handle.read(small, file.fileno(), True, 1000), small, data[1000:1100])
            _try(lambda: handle.fsync(root / "old"))
            called: list[bool] = []
            future = _try(lambda: handle.submit_pread(targets[0], root / "old"))
            if future is not None:
                _try(future.result, targets[0], data)
                called.append(future.done())
            report = faults.report()
        assert (root / "old").read_bytes() == data
        if written:
            assert (root / "new").read_bytes() == new
        still_works(handle, root)
    calls: list[str] = report["calls"]
    return calls


def test_size_that_cannot_be_asked_is_not_the_end_of_a_file(disk: Path, backend: str) -> None:
    """After a short transfer the file's size is asked; statx fails then, the file goes on."""
    data = bytes(range(256)) * 4096
    (disk / "file").write_bytes(data)
    schedule = Schedule(fates=(8192,), calls=(("statx", 1, ALL_CALLS, errno.EIO),))
    with nothing_kept(), schedule.installed(), aio.aio_handle(backend=backend) as handle:
        found = bytearray(len(data))
        handle.async_pread(found, disk / "file")
        completed, error = attempt(handle.wait, aio.AioError)
        if error is None:
            assert completed == 1
            assert found == data
        else:
            assert error.errno == errno.EIO


def test_page_cache_that_cannot_be_had_for_the_rest(disk: Path, backend: str) -> None:
    """A direct transfer stops inside its first block, and no second descriptor is to be had."""
    data = bytes(range(256)) * 4096
    (disk / "file").write_bytes(data)
    with nothing_kept(), Schedule().installed(), aio.aio_handle(backend=backend) as handle:
        Schedule(fates=(100,), calls=(("open", 1, 1, errno.EMFILE),)).install()
        found = bytearray(len(data))
        handle.async_pread(found, disk / "file")
        completed, error = attempt(handle.wait, aio.AioError)
        if faults.report()["failed_calls"]:
            assert (error.errno, error.nbytes_done) == (errno.EMFILE, 0)
        else:  # the file takes no direct I/O here
            assert completed == 1
            assert found == data
        faults.clear()
        still_works(handle, disk)


def _try(call: Any, target: Any = None, expected: bytes = b"") -> Any:
    """What `call` returns, with `target` holding `expected`; or None when it failed as it may."""
    result, error = attempt(call, aio.AioError)
    if error is not None:
        assert error.errno in injected_errnos(faults.report()), error
    elif target is not None:
        assert bytes(target) == expected
    return result


@pytest.mark.parametrize("nbytes", [5000, 40 << 20])
@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EAGAIN, errno.EPERM, errno.EINVAL])
def test_each_call_of_pinning_fails(nbytes: int, error: int) -> None:
    """Page-locking: one call fails, or it and all after it; then memory that is pinned, or none."""
    with nothing_kept(), Schedule(engines=False).installed():
        aio.pin_handle().new_cpu_locked_tensor(nbytes, tensor_of(b"0"))
        calls = faults.report()["calls"]
    assert {"mmap", "mlock", "madvise"} <= set(calls)
    for number in range(len(calls)):
        for count in (1, 1 << 40):
            watch()
            with nothing_kept():
                _pin(nbytes, Schedule(calls=(("*", number, count, error),), engines=False))


def _pin(nbytes: int, schedule: Schedule) -> None:
    handle = aio.pin_handle()
    with schedule.installed():
        tensor, error = attempt(
            lambda: handle.new_cpu_locked_tensor(nbytes, tensor_of(b"0")), aio.PinError
        )
        if error is not None:
            explained(error, faults.report())
            assert error.nbytes == nbytes
            return
    assert handle.is_pinned(tensor)
    stats = _deepnvme.pin.stats()
    assert stats["in_use"] >= nbytes
    assert status_kb("VmLck") << 10 == stats["in_use"] + stats["cached"]
    assert not tensor[::4096].any()
