"""A drive that fails at one byte fails the requests that touch it, and no other (C-03, F-07)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

import aio
from support.buffers import PAGE, locked, pattern, raw, tensor_of
from support.counters import counters
from support.files import piece
from support.fuse import FuseMount, fuse_mount

NBYTES = 300_000
BLOCK = 16384


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuseMount]:
    with fuse_mount(tmp_path_factory.mktemp("drive") / "fuse") as mount:
        yield mount


def expect(error: aio.AioError, path: Path, code: int, offset: int, nbytes: int) -> None:
    assert (error.errno, error.filename) == (code, str(path))
    assert (error.offset, error.nbytes) == (offset, nbytes)
    assert os.strerror(code) in str(error)
    assert 0 <= error.nbytes_done < nbytes


@given(
    at=st.integers(0, NBYTES - 1),
    offset=st.integers(0, NBYTES - 1),
    code=st.sampled_from([errno.EIO, errno.EREMOTEIO, errno.EOPNOTSUPP, errno.ENOMEM]),
    kind=st.sampled_from(["plain", "locked"]),
)
@example(at=0, offset=0, code=errno.EIO, kind="locked")
@example(at=NBYTES - 1, offset=4096, code=errno.EIO, kind="locked")
@example(at=100_000, offset=3, code=errno.EINVAL, kind="plain")
def test_one_byte(
    drive: FuseMount, handle: Any, at: int, offset: int, code: int, kind: str
) -> None:
    """Write and read [offset, NBYTES) of a file whose byte `at` cannot be had."""
    assume(at >= offset or at // PAGE < offset // PAGE)  # the page cache reads whole pages
    path = drive.path / f"error{code}-at-{at}"
    data = pattern(NBYTES - offset, seed=at)
    source = locked(handle, len(data)) if kind == "locked" else torch.empty(len(data)).byte()
    source.copy_(tensor_of(data))
    touched = offset <= at
    try:
        if not touched:
            assert handle.sync_pwrite(source, path, offset) == 1
            assert piece(path, offset, NBYTES) == data
            source.zero_()
            assert handle.sync_pread(source, path, offset) == 1
            assert raw(source) == data
            return
        with pytest.raises(aio.AioError) as caught:
            handle.sync_pwrite(source, path, offset)
        expect(caught.value, path, code, offset, len(data))
        assert raw(source) == data
        with path.open("r+b") as file:
            file.truncate(NBYTES)
        future = handle.submit_pread(source, path, offset)
        error = future.exception(60)
        expect(error, path, code, offset, len(data))
    finally:
        path.unlink()


def test_the_requests_beside_it(drive: FuseMount, backend: str, make_handle: Any) -> None:
    """Twenty requests on one file: nineteen do their work, and the handle goes on."""
    handle = make_handle(backend, block_size=BLOCK, intra_op_parallelism=2)
    size, count, bad = 20_000, 20, 7
    path = drive.path / f"error5-at-{bad * size + size // 2}"
    data = pattern(size * count)
    sources = tensor_of(data).split(size)
    for index, source in enumerate(sources):
        handle.async_pwrite(source, path, index * size)
    with pytest.raises(aio.AioError) as caught:
        handle.wait()
    assert len(caught.value.failures) == 1
    expect(caught.value, path, errno.EIO, bad * size, size)
    assert handle.wait() == 0
    targets = torch.zeros(size * count, dtype=torch.uint8).split(size)
    items = [(target, path, index * size) for index, target in enumerate(targets)]
    with pytest.raises(aio.AioError) as caught:
        handle.pread_many(items)
    assert [error.offset for error in caught.value.failures] == [bad * size]
    for index, target in enumerate(targets):
        if index != bad:
            assert raw(target) == data[index * size :][:size]
    assert handle.stats()["failed"] == 2
    path.unlink()


def test_validate_says_that_the_file_cannot_be_read_back(
    drive: FuseMount, backend: str, make_handle: Any
) -> None:
    path = drive.path / "error5-at-50000"
    with path.open("wb") as file:
        file.truncate(40_000)
    handle = make_handle(backend)
    with pytest.raises(aio.AioError) as caught:
        handle.pread(torch.zeros(60_000, dtype=torch.uint8), path, True, False)
    assert caught.value.errno == errno.ENODATA
    with path.open("r+b") as file:
        file.truncate(60_000)
    with pytest.raises(aio.AioError) as caught:
        handle.pread(torch.zeros(60_000, dtype=torch.uint8), path, True, False)
    assert caught.value.errno == errno.EIO
    path.unlink()


def test_failures_hold_nothing(drive: FuseMount, backend: str) -> None:
    path = drive.path / "error5-at-5000"

    def fail(times: int) -> None:
        with aio.aio_handle(backend=backend, block_size=BLOCK) as handle:
            for _ in range(times):
                handle.async_pwrite(tensor_of(pattern(NBYTES)), path)
                with pytest.raises(aio.AioError):
                    handle.wait()

    fail(1)
    with counters():
        fail(20)
    path.unlink()
