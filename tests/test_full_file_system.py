"""On a full drive what fits is whole, what does not says ENOSPC, nothing is kept (A-01, C-14)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from support.buffers import fill, locked, pattern, raw
from support.counters import counters, until
from support.files import fill_up
from support.mounts import ext4_image, small_tmpfs

MIB = 1 << 20
ROOM = 24 * MIB
NBYTES = 3 * MIB + 5
COUNT = 20  # more than the room


@pytest.fixture(scope="module", params=["tmpfs", "ext4"])
def drive(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Path]:
    point = tmp_path_factory.mktemp("small") / "drive"
    made = small_tmpfs if request.param == "tmpfs" else ext4_image
    with made(point, ROOM) as path:
        yield path


@pytest.fixture
def small(drive: Path) -> Iterator[Path]:
    yield drive
    for path in drive.iterdir():
        if path.is_file():
            path.unlink()


def sources(handle: Any) -> list[torch.Tensor]:
    """Pinned, plain and strided ones in turn."""
    made = []
    for index in range(COUNT):
        if index % 3 == 0:
            tensor = locked(handle, NBYTES)
        elif index % 3 == 1:
            tensor = torch.empty(NBYTES, dtype=torch.uint8)
        else:
            tensor = torch.empty(NBYTES, 2, dtype=torch.uint8)[:, 0]
        tensor.copy_(torch.frombuffer(bytearray(pattern(NBYTES, index)), dtype=torch.uint8))
        made.append(tensor)
    return made


def check(error: aio.AioError, paths: list[Path], tensors: list[torch.Tensor]) -> None:
    """Those that `error` lists failed for want of room; the others are whole."""
    failed = {failure.filename: failure for failure in error.failures}
    assert 1 <= len(failed) == len(error.failures) < len(paths)
    for index, (path, tensor) in enumerate(zip(paths, tensors, strict=True)):
        data = pattern(NBYTES, index)
        assert raw(tensor) == data
        if str(path) in failed:
            failure = failed[str(path)]
            assert (failure.errno, failure.offset, failure.nbytes) == (errno.ENOSPC, 0, NBYTES)
            assert 0 <= failure.nbytes_done < NBYTES
        else:
            assert path.read_bytes() == data


def test_many_at_once(small: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend, intra_op_parallelism=2)
    tensors = sources(handle)
    paths = [small / f"{index}" for index in range(COUNT)]
    with pytest.raises(aio.AioError) as caught:
        handle.pwrite_many(zip(tensors, paths, strict=True))
    check(caught.value, paths, tensors)
    lost = {failure.filename for failure in caught.value.failures}
    for path in paths:
        path.unlink(missing_ok=True)
    again = [(tensors[index], path) for index, path in enumerate(paths) if str(path) in lost][:3]
    assert handle.pwrite_many(again) == len(again)
    assert all(path.read_bytes() == raw(tensor) for tensor, path in again)


def test_futures(small: Path, backend: str, make_handle: Any) -> None:
    """Each learns of its own failure, at once or from its future, and wait() of none."""
    handle = make_handle(backend)
    written, refused = {}, 0
    for index, tensor in enumerate(sources(handle)):
        try:
            written[small / f"{index}"] = handle.submit_pwrite(tensor, small / f"{index}"), index
        except aio.AioError as error:
            refused += error.errno == errno.ENOSPC
    for path, (future, index) in written.items():
        error = future.exception(60)
        if error is None:
            assert path.read_bytes() == pattern(NBYTES, index)
        else:
            assert error.errno == errno.ENOSPC
            refused += 1
    whole = sum(future.done() and future.exception() is None for future, _ in written.values())
    assert whole + refused == COUNT
    assert 0 < refused < COUNT
    assert handle.wait() == 0


def test_overwriting_needs_no_room(small: Path, backend: str, make_handle: Any) -> None:
    """A file that has its blocks is written again on a full drive; what extends it is refused."""
    handle = make_handle(backend)
    path = small / "file"

    def in_the_background(*request: Any) -> None:
        handle.async_pwrite(*request)
        handle.wait()

    tensor = locked(handle, NBYTES)
    fill(tensor, pattern(NBYTES))
    handle.sync_pwrite(tensor, path)
    fill_up(small / "rest")
    fill(tensor, pattern(NBYTES, 1))
    assert handle.sync_pwrite(tensor, path) == 1
    assert path.read_bytes() == pattern(NBYTES, 1)
    for way in ("sync", "async"):
        write = handle.sync_pwrite if way == "sync" else in_the_background
        with pytest.raises(aio.AioError) as caught:
            write(tensor, path, NBYTES)
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.offset == NBYTES
        with path.open("rb") as file:
            assert file.read(NBYTES) == pattern(NBYTES, 1)
    assert raw(tensor) == pattern(NBYTES, 1)


def test_a_sparse_file_runs_out_of_blocks(small: Path, backend: str, make_handle: Any) -> None:
    """Nothing to reserve, since the size stays: the drive is full in the middle of a transfer."""
    handle = make_handle(backend)
    path = small / "sparse"
    with path.open("wb") as file:
        file.truncate(2 * ROOM)
    tensor = locked(handle, 2 * ROOM)
    tensor.fill_(0x5A)
    handle.async_pwrite(tensor, path)
    with pytest.raises(aio.AioError) as caught:
        handle.wait()
    assert caught.value.errno == errno.ENOSPC
    assert 0 <= caught.value.nbytes_done <= ROOM
    assert path.stat().st_size == 2 * ROOM
    assert bool((tensor == 0x5A).all())
    assert handle.wait() == 0


def test_failures_hold_nothing(small: Path, backend: str) -> None:
    """Not a descriptor, a thread, a locked page, or a block of a deleted file."""

    def fail(times: int) -> None:
        with aio.aio_handle(backend=backend) as handle:
            for index in range(times):
                path = small / f"{index}"
                with pytest.raises(aio.AioError):
                    handle.pwrite_many([(bytes(2 * ROOM), path), (bytes(1000), small / "good")])
                path.unlink()
                (small / "good").unlink()

    def free_blocks() -> int:
        descriptor = os.open(small, os.O_RDONLY)
        os.fsync(descriptor)  # a journal keeps the blocks of a deleted file until it commits
        os.close(descriptor)
        return os.statvfs(small).f_bfree

    fail(1)
    free = free_blocks()
    with counters():
        fail(10)
    until(lambda: free_blocks() == free, "the blocks of deleted files free again")
