"""Reading past the end of a file is one error and touches no other byte (A-05, B-09)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aio
from support.buffers import locked, pattern, raw

FILL = 0x5A


def canvas(handle: Any, nbytes: int, pinned: bool) -> torch.Tensor:
    tensor = locked(handle, nbytes) if pinned else torch.empty(nbytes, dtype=torch.uint8)
    return tensor.fill_(FILL)


def check(error: aio.AioError, path: Path, offset: int, nbytes: int, size: int) -> None:
    assert error.errno == errno.ENODATA
    assert error.filename == str(path)
    assert error.offset == offset
    assert error.nbytes == nbytes
    assert error.nbytes_done <= max(size - offset, 0)


@pytest.mark.parametrize("pinned", [False, True], ids=["plain", "locked"])
@pytest.mark.parametrize("nbytes", [1, 4096])
def test_wholly_past_a_file_of_27_bytes(
    directory: Path, backend: str, make_handle: Any, nbytes: int, pinned: bool
) -> None:
    path = directory / "file"
    path.write_bytes(pattern(27))
    handle = make_handle(backend)
    for offset in (27, 29, 512, 4096, 1 << 20):
        tensor = canvas(handle, nbytes, pinned)
        with pytest.raises(aio.AioError) as caught:
            handle.sync_pread(tensor, str(path), offset)
        check(caught.value, path, offset, nbytes, 27)
        assert raw(tensor) == bytes([FILL]) * nbytes
    last = canvas(handle, 7, pinned)
    assert handle.sync_pread(last, str(path), 20) == 1
    assert raw(last) == pattern(27)[20:]


@given(
    size=st.integers(0, 200_000),
    offset=st.one_of(st.integers(0, 200_000), st.sampled_from([0, 4096, 65536])),
    nbytes=st.integers(1, 200_000),
    pinned=st.booleans(),
)
def test_any_size_any_offset(
    directory: Path, handle: Any, size: int, offset: int, nbytes: int, pinned: bool
) -> None:
    path = directory / "file"
    data = pattern(size)
    path.write_bytes(data)
    tensor = canvas(handle, nbytes, pinned)
    if offset + nbytes <= size:
        assert handle.sync_pread(tensor, str(path), offset) == 1
        assert raw(tensor) == data[offset : offset + nbytes]
        return
    with pytest.raises(aio.AioError) as caught:
        handle.sync_pread(tensor, str(path), offset)
    check(caught.value, path, offset, nbytes, size)
    assert raw(tensor) == bytes([FILL]) * nbytes


@pytest.mark.parametrize("way", ["read", "pread", "async", "future", "many"])
def test_every_way_of_reading(directory: Path, backend: str, make_handle: Any, way: str) -> None:
    path = directory / "file"
    path.write_bytes(pattern(5000))
    handle = make_handle(backend)
    tensor = canvas(handle, 8192, pinned=False)
    name = str(path)

    def read_and_wait() -> None:
        handle.async_pread(tensor, name)
        handle.wait()

    ways = {
        "read": lambda: handle.read(tensor, name, False),
        "pread": lambda: handle.pread(tensor, name, False, False),
        "async": read_and_wait,
        "future": lambda: handle.submit_pread(tensor, name).result(60),
        "many": lambda: handle.pread_many([(tensor, name)]),
    }
    with pytest.raises(aio.AioError) as caught:
        ways[way]()
    check(caught.value, path, 0, 8192, 5000)
    assert raw(tensor) == bytes([FILL]) * 8192
    assert handle.wait() == 0


def test_a_file_cut_after_the_request_began_is_never_success(
    directory: Path, backend: str, make_handle: Any
) -> None:
    """What is there at submission may be gone at the transfer: then the request fails, with an
    exact count.
    """
    handle = make_handle(backend, block_size=4096, queue_depth=1)
    data = pattern(1 << 20)
    for n in range(20):
        path = directory / f"file{n}"
        path.write_bytes(data)
        tensor = canvas(handle, len(data), pinned=False)
        future = handle.submit_pread(tensor, str(path))
        with open(path, "r+b") as file:
            file.truncate(1000)
        error = future.exception(60)
        if error is None:
            # The kernel may hand out a page that the truncation has just cleared; it may not leave
            # one unread.
            read, asked = (np.frombuffer(some, dtype=np.uint8) for some in (raw(tensor), data))
            assert bool(((read == asked) | (read == 0)).all())
        else:
            assert isinstance(error, aio.AioError)
            assert error.errno == errno.ENODATA
            assert error.nbytes_done < len(data)
