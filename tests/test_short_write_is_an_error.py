"""A write that the storage takes only a part of is an error, never success (A-01)."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from support.buffers import fill, locked, pattern, shifted, tensor_of
from support.counters import counters
from support.files import contents
from support.mounts import ext4_image, small_tmpfs

MIB = 1 << 20


def write_sync(handle: Any, tensor: torch.Tensor, path: Path) -> None:
    handle.sync_pwrite(tensor, str(path))


def write_async(handle: Any, tensor: torch.Tensor, path: Path) -> None:
    handle.async_pwrite(tensor, str(path))
    handle.wait()


def write_future(handle: Any, tensor: torch.Tensor, path: Path) -> None:
    handle.submit_pwrite(tensor, str(path)).result(60)


def write_many(handle: Any, tensor: torch.Tensor, path: Path) -> None:
    handle.pwrite_many([(tensor, str(path))])


WAYS = [write_sync, write_async, write_future, write_many]
Write = Callable[[Any, torch.Tensor, Path], None]


def check_failure(error: aio.AioError, path: Path, code: int, nbytes: int, room: int) -> None:
    assert error.errno == code
    assert error.filename == str(path)
    assert error.offset == 0
    assert error.nbytes == nbytes
    assert 0 <= error.nbytes_done <= room


def check_still_usable(handle: Any, path: Path) -> None:
    data = pattern(5000, seed=1)
    assert handle.sync_pwrite(tensor_of(data), str(path)) == 1
    assert contents(path) == data
    assert handle.wait() == 0


@pytest.mark.parametrize("write", WAYS)
@pytest.mark.parametrize("memory", ["locked", "plain", "odd address"])
def test_tmpfs_of_one_mib(
    tmp_path: Path, backend: str, make_handle: Any, memory: str, write: Write
) -> None:
    with small_tmpfs(tmp_path / "small", MIB) as small:
        handle = make_handle(backend)
        data = pattern(2 * MIB)
        tensor = {
            "locked": lambda: locked(handle, 2 * MIB),
            "plain": lambda: torch.empty(2 * MIB, dtype=torch.uint8),
            "odd address": lambda: shifted(2 * MIB, 1),
        }[memory]()
        fill(tensor, data)
        path = small / "file"
        with pytest.raises(aio.AioError) as caught:
            write(handle, tensor, path)
        check_failure(caught.value, path, errno.ENOSPC, 2 * MIB, MIB)
        assert contents(path) != data
        path.unlink()
        check_still_usable(handle, small / "again")


@pytest.mark.parametrize("write", WAYS)
def test_full_ext4(tmp_path: Path, backend: str, make_handle: Any, write: Write) -> None:
    with ext4_image(tmp_path / "image", 24 * MIB) as small:
        handle = make_handle(backend, intra_op_parallelism=2)
        tensor = locked(handle, 32 * MIB)
        tensor.fill_(0x5A)
        path = small / "file"
        with pytest.raises(aio.AioError) as caught:
            write(handle, tensor, path)
        check_failure(caught.value, path, errno.ENOSPC, 32 * MIB, 24 * MIB)
        path.unlink()
        check_still_usable(handle, small / "again")


@contextmanager
def file_size_limit(nbytes: int) -> Iterator[None]:
    """Files of this process may not grow past `nbytes`: the kernel cuts the write short, then says
    EFBIG.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("write", WAYS)
def test_file_size_limit(directory: Path, backend: str, make_handle: Any, write: Write) -> None:
    handle = make_handle(backend, block_size=256 * 1024)
    data = pattern(2 * MIB)
    tensor = tensor_of(data)
    for limit in (0, 4096, MIB, MIB + 512, 2 * MIB - 1):
        path = directory / f"limit {limit}"
        with file_size_limit(limit), pytest.raises(aio.AioError) as caught:
            write(handle, tensor, path)
        check_failure(caught.value, path, errno.EFBIG, 2 * MIB, limit)
        assert path.stat().st_size <= limit
    check_still_usable(handle, directory / "again")


def test_a_failed_write_does_not_spoil_its_neighbours(
    directory: Path, backend: str, make_handle: Any
) -> None:
    handle = make_handle(backend)
    small = [pattern(70_001, seed=n) for n in range(6)]
    items = []
    for n, data in enumerate(small):
        items.append((tensor_of(data), str(directory / f"good{n}")))
        items.append((tensor_of(bytes(2 * MIB)), str(directory / f"bad{n}")))
    with file_size_limit(MIB), pytest.raises(aio.AioError) as caught:
        handle.pwrite_many(items)
    assert sorted(error.filename for error in caught.value.failures) == sorted(
        str(directory / f"bad{n}") for n in range(6)
    )
    for n, data in enumerate(small):
        assert contents(directory / f"good{n}") == data
    assert handle.wait() == 0


def test_failed_writes_hold_nothing(directory: Path, backend: str) -> None:
    def fail(times: int) -> None:
        with aio.aio_handle(backend=backend) as handle, file_size_limit(MIB):
            for n in range(times):
                with pytest.raises(aio.AioError):
                    handle.sync_pwrite(tensor_of(bytes(2 * MIB)), str(directory / f"{n}"))

    fail(1)
    with counters():
        fail(20)
