"""A drive that moves less than it is asked gets the rest again, until it is full (A-01, A-05)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aio
from support.buffers import locked, pattern, raw, shifted, tensor_of
from support.fuse import FuseMount, fuse_mount

NBYTES = 200_000

SHORT_ON_IO_URING = """\
the kernel's io_uring is wrong where FUSE moves less than asked, past the page cache: it asks for
the rest by itself, at the position of the first part, and reports everything as moved (seen on 6.18
with plain liburing); tests/cpp/test_pump.cpp has short completions for every engine"""


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuseMount]:
    with fuse_mount(tmp_path_factory.mktemp("drive") / "fuse") as mount:
        yield mount


def memory(handle: Any, kind: str) -> Any:
    return locked(handle, NBYTES) if kind == "locked" else shifted(NBYTES, 1)


POSITIONS = st.one_of(
    st.integers(1, NBYTES - 1), st.sampled_from([1, 511, 512, 4095, 4096, 4097, 16384, 65535])
)
KINDS = st.sampled_from(["locked", "odd address"])


@given(at=POSITIONS, kind=KINDS)
def test_the_rest_is_moved(drive: FuseMount, handle: Any, at: int, kind: str) -> None:
    if handle.backend == "io_uring":
        pytest.skip(SHORT_ON_IO_URING)
    path = drive.path / f"short-at-{at}"
    data = pattern(NBYTES, seed=at)
    tensor = memory(handle, kind)
    tensor.copy_(tensor_of(data))
    try:
        before = handle.stats()["short_transfers"]
        assert handle.sync_pwrite(tensor, path) == 1
        assert path.read_bytes() == data
        tensor.zero_()
        assert handle.sync_pread(tensor, path) == 1
        assert raw(tensor) == data
        aligned = at % 16384 == 0  # between two transfers: neither of them is short
        assert aligned or handle.stats()["short_transfers"] > before
    finally:
        path.unlink()


@given(room=POSITIONS, kind=KINDS)
def test_a_drive_with_room_for_some(drive: FuseMount, handle: Any, room: int, kind: str) -> None:
    """ENOSPC, with no more bytes said to be done than there is room for."""
    path = drive.path / f"full-at-{room}"
    data = pattern(NBYTES, seed=room)
    tensor = memory(handle, kind)
    tensor.copy_(tensor_of(data))
    try:
        with pytest.raises(aio.AioError) as caught:
            handle.sync_pwrite(tensor, path)
        error = caught.value
        assert (error.errno, error.filename) == (errno.ENOSPC, str(path))
        assert (error.offset, error.nbytes) == (0, NBYTES)
        assert 0 <= error.nbytes_done <= room
        assert path.stat().st_size <= room
        assert raw(tensor) == data
        assert handle.sync_pwrite(tensor[:room], path) == 1
        assert path.read_bytes() == data[:room]
    finally:
        path.unlink()


def test_a_file_that_shrinks_while_its_read_is_held_up(tmp_path: Path, handle: Any) -> None:
    """An error, not zeros taken for data."""
    with fuse_mount(tmp_path / "fuse") as drive:
        path = drive.path / "held-file"
        path.touch()
        os.truncate(path, NBYTES)
        tensor = memory(handle, "locked")
        future = handle.submit_pread(tensor, path)
        os.truncate(path, NBYTES // 2)
        drive.release()
        error = future.exception(60)
    assert error is not None
    assert error.errno == errno.ENODATA
    assert handle.backend == "io_uring" or error.nbytes_done <= NBYTES // 2
