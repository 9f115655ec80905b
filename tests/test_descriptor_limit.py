"""At the limit of open files large calls complete, others say EMFILE; nothing is left (F-06)."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from support.buffers import pattern, raw, tensor_of
from support.child import child_answer
from support.counters import counters, held_now, until
from support.fuse import fuse_mount
from support.limits import no_descriptor_left

MANY = """
import json, os, resource, sys
import torch, aio
from support.buffers import pattern
backend, folder, count, limit, parallelism = *sys.argv[1:3], *map(int, sys.argv[3:])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
data = pattern(count * 5000)
source = torch.frombuffer(bytearray(data), dtype=torch.uint8).split(5000)
target = torch.zeros(count * 5000, dtype=torch.uint8)
paths = [f"{folder}/{index}" for index in range(count)]
answer = []
with aio.aio_handle(backend=backend, intra_op_parallelism=parallelism) as handle:
    answer.append(handle.pwrite_many(zip(source, paths)))
    answer.append(handle.pread_many(zip(target.split(5000), paths)))
    answer.append(target.numpy().tobytes() == data)
    target.zero_()
    answer.append(handle.submit_pread_many(zip(target.split(5000), paths)).result())
    answer.append(target.numpy().tobytes() == data)
    futures = [handle.submit_pwrite(*item) for item in zip(source, paths)]
    answer.append(sum(future.result() for future in futures))
    for item in zip(target.split(5000), paths):
        handle.async_pread(*item)
    answer.append(handle.wait())
print(json.dumps(answer))
"""


@pytest.mark.parametrize(("storage", "limit"), [("disk", 64), ("tmpfs", 256)])
def test_more_files_than_descriptors(
    request: pytest.FixtureRequest, backend: str, storage: str, limit: int
) -> None:
    """1500 distinct files in one call, in futures, and before one wait()."""
    directory: Path = request.getfixturevalue(storage)
    answer = child_answer(MANY, backend, directory, 1500, limit, 2)
    assert answer == [1500, 1500, True, 7_500_000, True, 7_500_000, 1500]
    data = pattern(1500 * 5000)
    for index in range(1500):
        assert (directory / f"{index}").read_bytes() == data[index * 5000 :][:5000]


def test_the_program_has_taken_them_all(directory: Path, backend: str, make_handle: Any) -> None:
    """Nothing that could be waited for: an error that names the file, in every kind of call."""
    handle = make_handle(backend)
    data = pattern(100_001)
    path = directory / "file"
    handle.sync_pwrite(tensor_of(data), path)
    target = torch.zeros(len(data), dtype=torch.uint8)
    calls = {
        "sync": lambda: handle.sync_pread(target, path),
        "async": lambda: handle.async_pread(target, path),
        "future": lambda: handle.submit_pread(target, path),
        "many": lambda: handle.pread_many([(target, path), (target, path)]),
        "write": lambda: handle.sync_pwrite(target, directory / "new"),
    }
    before = held_now()
    for name, call in calls.items():
        with no_descriptor_left(), pytest.raises(aio.AioError) as caught:
            call()
        assert caught.value.errno == errno.EMFILE, name
        assert caught.value.filename == str(directory / "new" if name == "write" else path)
        assert caught.value.nbytes == len(data)
        assert caught.value.nbytes_done == 0
    assert held_now().descriptors == before.descriptors
    assert handle.wait() == 0
    assert raw(target) == bytes(len(data))
    assert handle.sync_pread(target, path) == 1
    assert raw(target) == data


def test_one_descriptor_left(directory: Path, backend: str, make_handle: Any) -> None:
    """A file that is used past the cache and through it takes two: EMFILE or whole, never half."""
    handle = make_handle(backend)
    data = pattern(100_001)
    path = directory / "file"
    path.write_bytes(data)
    for spare in (1, 2, 3):
        target = torch.zeros(len(data), dtype=torch.uint8)
        said = 0
        with no_descriptor_left(spare):
            try:
                handle.sync_pread(target, path)
            except aio.AioError as error:
                said = error.errno or -1
        assert (said, spare) == (errno.EMFILE, 1) or raw(target) == data


def test_descriptors_come_back_from_requests_in_flight(
    tmp_path: Path, disk: Path, backend: str, make_handle: Any
) -> None:
    """A call that finds none left waits for the requests that hold some, instead of failing."""
    handle = make_handle(backend)
    (disk / "file").write_bytes(pattern(5000))
    target = bytearray(5000)
    with fuse_mount(tmp_path / "fuse") as drive:
        held = drive.path / "held-file"
        held.touch()
        first = handle.submit_pwrite(bytes(5000), held)
        root = os.open(drive.path, os.O_RDONLY)
        with ThreadPoolExecutor(1) as pool, no_descriptor_left():
            second = pool.submit(handle.sync_pread, target, disk / "file")
            assert not second.done()
            os.mknod("release", dir_fd=root)  # opens nothing
            assert second.result(60) == 1
        os.close(root)
        assert first.result(60) == 5000
    assert target == pattern(5000)


def test_interrupted_while_none_comes_back(
    tmp_path: Path, disk: Path, backend: str, make_handle: Any
) -> None:
    """What a call has begun before Ctrl-C goes on to its end; the rest of it is not begun."""
    handle = make_handle(backend)
    ready = threading.Event()

    def interrupt() -> None:
        ready.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with fuse_mount(tmp_path / "fuse") as drive:
        held = drive.path / "held-file"
        held.touch()
        root = os.open(drive.path, os.O_RDONLY)

        def items() -> Iterator[tuple[bytes, Path]]:
            yield b"1" * 100, held
            yield b"2" * 100, disk / "file"
            ready.set()

        switching = sys.getswitchinterval()
        sys.setswitchinterval(1000)  # the thread goes on when the call gives the GIL up
        try:
            with no_descriptor_left(1), pytest.raises(KeyboardInterrupt):
                handle.submit_pwrite_many(items())
        finally:
            sys.setswitchinterval(switching)
            ready.set()
            thread.join()
            os.mknod("release", dir_fd=root)
            os.close(root)
        until(lambda: handle.stats()["in_flight"] == 0, "the request that had begun is done")
        assert held.read_bytes() == b"1" * 100
    assert list(disk.iterdir()) == []
    assert handle.stats()["requests"]["write"] == 1
    assert handle.sync_pwrite(b"3", disk / "file") == 1


def test_a_handle_made_with_too_few(backend: str) -> None:
    """Whichever ring, descriptor or thread cannot be made, the constructor gives all back."""

    def attempt(spare: int) -> bool:
        with no_descriptor_left(spare):
            try:
                aio.aio_handle(backend=backend, intra_op_parallelism=4).close()
            except RuntimeError as error:
                said = str(error)
            else:
                return True
        assert backend in said
        return False

    made = attempt(64)
    assert made
    with counters():
        results = [attempt(spare) for spare in range(20)]
    assert results == sorted(results)  # too few, then enough
    assert results[-1]
    assert backend == "posix" or not results[0]


def test_auto_takes_what_can_be_made() -> None:
    """An engine that needs no descriptors is chosen where none are left."""
    with counters(), no_descriptor_left():
        handle = aio.aio_handle(intra_op_parallelism=2)
        backend = handle.backend
        handle.close()
    assert backend in aio.available_backends()
