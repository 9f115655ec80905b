"""A block device is read and written as a file is, past the page cache, and not beyond its end."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aio
from support.buffers import pattern
from support.mounts import loop_device

SIZE = 8 << 20


@pytest.fixture(params=[512, 4096])
def device(request: pytest.FixtureRequest, disk: Path) -> Iterator[Path]:
    """One with sectors of each size."""
    with loop_device(disk / "image", SIZE, request.param) as path:
        yield path


@pytest.mark.parametrize("by", ["path", "descriptor"])
@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, SIZE), (4096, 1 << 20), (5001, 2_000_003), (SIZE - 777, 777)]
)
def test_bytes_land_where_they_should(
    device: Path, backend: str, make_handle: Any, by: str, offset: int, nbytes: int
) -> None:
    handle = make_handle(backend)
    data = pattern(nbytes)
    expected = bytearray(SIZE)
    expected[offset : offset + nbytes] = data
    back = bytearray(nbytes)
    descriptor = os.open(device, os.O_RDWR)
    try:
        file = descriptor if by == "descriptor" else device
        assert handle.sync_pwrite(data, file, offset) == 1
        assert device.read_bytes() == expected
        assert handle.sync_pread(back, file, offset) == 1
    finally:
        os.close(descriptor)
    assert back == data
    if nbytes > 2 << 12:
        for moved in handle.stats()["bytes"].values():  # read, write
            assert moved["buffered"] < 2 * 4096
            assert sum(moved.values()) == nbytes


@pytest.mark.parametrize("offset", [SIZE - 4095, SIZE, SIZE + 4096])
def test_nothing_beyond_its_end(device: Path, backend: str, make_handle: Any, offset: int) -> None:
    handle = make_handle(backend)
    data = bytearray(pattern(4096))
    for call, expected in ((handle.sync_pread, errno.ENODATA), (handle.sync_pwrite, errno.ENOSPC)):
        with pytest.raises(aio.AioError, match=f"there are {SIZE} bytes") as caught:
            call(data, device, offset)
        assert caught.value.errno == expected
        assert caught.value.nbytes_done == 0
    assert device.read_bytes() == bytes(SIZE)
    assert data == pattern(4096)
