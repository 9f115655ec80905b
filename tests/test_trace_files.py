"""The file of a trace: whose it is, when it is whole, and that its errors fail no request."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from support.child import run_child
from support.files import fill_up
from support.forks import expect_child_ok, fork_and
from support.in_flight import sparse
from support.mounts import small_tmpfs
from support.traces import check_tracks, read_trace, read_unfinished_trace


def write(handle: Any, path: Path, times: int = 1) -> None:
    for _ in range(times):
        handle.sync_pwrite(torch.ones(100), path)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_off_by_default(file: Path) -> None:
    before = set(os.listdir("/proc/self/task"))
    with aio.aio_handle() as handle:
        write(handle, file)
        started = set(os.listdir("/proc/self/task")) - before
        names = {Path(f"/proc/self/task/{tid}/comm").read_text().strip() for tid in started}
        assert names == {"dnvme-worker"}
    assert list(file.parent.iterdir()) == [file]


def test_the_argument_wins(
    file: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPNVME_TRACE", str(tmp_path / "%p.json"))
    for argument in (None, target, str(target).encode(), ""):
        with aio.aio_handle(trace=argument) as handle:
            write(handle, file)
    assert len(read_trace(tmp_path / f"{os.getpid()}.json").transfers) == 1
    assert len(read_trace(target).transfers) == 2
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert {path.suffix for path in tmp_path.iterdir()} == {"", ".json"}


def test_handles_of_one_file_share_it(file: Path, target: Path) -> None:
    """At a time and one after the other, by any name of the file; whole after the last close()."""
    link = target.with_name("link")
    link.symlink_to(target)
    target.write_bytes(b"something older, which a new trace replaces" * 1000)
    first = aio.aio_handle(trace=target)
    second = aio.aio_handle(trace=link)
    write(first, file, 2)
    write(second, file, 3)
    first.close()
    write(second, file)
    second.close()
    assert len(read_trace(target).transfers) == 6
    with aio.aio_handle(trace=target) as third:
        write(third, file, 4)
    trace = read_trace(target)
    assert len(trace.transfers) == 10
    assert trace.dropped == 0
    check_tracks(trace)


def test_errors_come_when_the_handle_is_made(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
    for name, error in (
        ("none/trace.json", FileNotFoundError),
        (".", IsADirectoryError),
        ("kept/x", NotADirectoryError),
        ("pipe", OSError),
        ("n" * 300, OSError),
    ):
        with pytest.raises(error) as caught:
            aio.aio_handle(trace=tmp_path / name)
        assert not isinstance(caught.value, aio.AioError)
        assert caught.value.filename == str(tmp_path / name)
    with pytest.raises(TypeError):
        aio.aio_handle(trace=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="null"):
        aio.aio_handle(trace="a\0b")
    assert (tmp_path / "kept").read_text() == "kept"
    assert (len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))) == before


def test_no_room_at_the_start(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "small", 1 << 16) as folder:
        fill_up(folder / "rest")
        with pytest.raises(OSError, match="trace") as caught:
            aio.aio_handle(trace=folder / "trace.json")
        assert caught.value.errno == errno.ENOSPC
        assert not (folder / "trace.json").exists()


def test_the_disk_fills_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No request fails, it is logged once, and the file is whole, with the number that it lacks."""
    path = sparse(tmp_path / "file", 1 << 20)
    with small_tmpfs(tmp_path / "small", 40 * 4096) as folder:
        handle = aio.aio_handle(4096, trace=folder / "trace.json")
        with caplog.at_level(logging.ERROR, "aio"):
            for _ in range(3):
                assert handle.pread_many([(bytearray(1 << 20), path)]) == 1
            handle.close()
            handle.close()
        trace = read_trace(folder / "trace.json")
    done = sum(handle.stats()["transfers"]["read"].values())
    calls = 2 * 3 + 1  # pread_many starts and waits; close() waits
    assert len(trace.calls) + len(trace.transfers) + trace.dropped == done + calls
    assert trace.dropped > 0
    assert len(trace.transfers) > 50
    (record,) = caplog.records
    assert os.strerror(errno.ENOSPC) in record.message


LIMITED = """
import json, logging, resource, sys, aio
logging.basicConfig(stream=sys.stdout, level=logging.ERROR)
for limit in sys.argv[3:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    with aio.aio_handle(4096, trace=sys.argv[1] + limit) as handle:
        handle.pread_many([(bytearray(1 << 20), sys.argv[2])])
"""


def test_a_write_that_is_cut(target: Path, tmp_path: Path) -> None:
    """Anywhere, not only where a page ends: RLIMIT_FSIZE, whose signal must not end the process."""
    path = sparse(tmp_path / "file", 1 << 20)
    limits = (50_000, 49_152 + 30, 49_152, 4097)
    done = run_child(LIMITED, target, path, *limits)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("could not be written") == len(limits)
    for limit in limits:
        trace = read_trace(Path(f"{target}{limit}"))
        assert trace.dropped > 0
        assert (len(trace.transfers) > 0) == (limit > 5000)


ENDS = """
import os, sys, aio
how, trace, path = sys.argv[1:]
handle = aio.aio_handle(trace=trace)
for _ in range(3):
    handle.sync_pwrite(bytes(100), path)
handle.async_pwrite(bytes(100_000), path)
handle.cycle = [handle]
if how == "killed":
    handle.wait()
    while os.stat(trace).st_size < 1000:
        os.sched_yield()
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(("how", "status"), [("ends", 0), ("killed", -9)])
def test_the_process_ends(how: str, status: int, file: Path, target: Path) -> None:
    """Whole at exit, though nobody closed the handle; a killed process leaves what readers take."""
    done = run_child(ENDS, how, target, file)
    assert done.returncode == status, done.stderr
    if how == "killed":
        trace = read_unfinished_trace(target)
        assert len(trace.calls_of("sync_pwrite")) == 3
        with aio.aio_handle(trace=target) as handle:  # nobody holds it any more
            write(handle, file)
        assert len(read_trace(target).transfers) == 1
    else:
        trace = read_trace(target)
        assert sum(one["args"]["bytes"] for one in trace.transfers) == 100_300
        assert trace.dropped == 0


def test_fork(file: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child writes nothing to its parent's file, and cannot take it; %p gives it its own."""
    handle = aio.aio_handle(trace=target)
    write(handle, file)

    def child() -> None:
        with pytest.raises(RuntimeError):
            write(handle, file)
        with pytest.raises(OSError, match="another process") as caught:
            aio.aio_handle(trace=target)
        assert caught.value.errno == errno.EBUSY
        monkeypatch.setenv("DEEPNVME_TRACE", str(target) + ".%p")
        with aio.aio_handle() as own:
            write(own, file, 2)
        trace = read_trace(Path(f"{target}.{os.getpid()}"))
        assert len(trace.transfers) == 2
        assert {event["pid"] for event in trace.events} == {os.getpid()}

    expect_child_ok(fork_and(child))
    write(handle, file)
    handle.close()
    trace = read_trace(target)
    assert len(trace.transfers) == 2
    assert {event["pid"] for event in trace.events} == {os.getpid()}


def test_a_child_does_not_keep_the_file(file: Path, target: Path) -> None:
    """It may outlive its parent's close(), but its copy of the lock must not."""
    handle = aio.aio_handle(trace=target)

    def child() -> None:
        signal.sigwait([signal.SIGUSR1])

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        pid = fork_and(child)
        write(handle, file)
        handle.close()
        assert len(read_trace(target).transfers) == 1
        aio.aio_handle(trace=target).close()
        os.kill(pid, signal.SIGUSR1)
        expect_child_ok(pid)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])


def test_every_prefix_of_whole_pages_can_be_read(target: Path, tmp_path: Path) -> None:
    """No event crosses a page of the file: what a kill leaves of a write ends behind one."""
    path = sparse(tmp_path / "file", 1 << 20)
    with aio.aio_handle(4096, trace=target) as handle:
        handle.pread_many([(bytearray(1 << 20), path)])
    whole = target.read_bytes()
    assert len(whole) > 20 * 4096
    for end in range(4096, len(whole), 4096):
        json.loads(whole[:end] + b"]")
