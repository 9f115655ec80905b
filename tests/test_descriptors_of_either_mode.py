"""What suits a descriptor for writing is not assumed of one for reading, or back (B-07)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from support.buffers import fill, pattern, raw, shifted
from support.files import contents, drop_cache

NBYTES = 8192 + 64


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("order", ["read first", "write first"])
@pytest.mark.parametrize("shift", [0, 64, 512])
@pytest.mark.parametrize("offset", [0, 64, 4096])
def test_one_handle_both_ways(
    directory: Path, backend: str, make_handle: Any, order: str, shift: int, offset: int
) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    path.write_bytes(pattern(offset + NBYTES))
    tensor = shifted(NBYTES, shift)

    def read() -> None:
        drop_cache(path)
        want = contents(path)[offset:]
        with opened(path, os.O_RDONLY) as descriptor:
            tensor.zero_()
            assert handle.async_pread(tensor, descriptor, offset) == 0
            assert handle.wait() == 1
        assert raw(tensor) == want

    def write(seed: int) -> None:
        data = pattern(NBYTES, seed)
        with opened(path, os.O_WRONLY) as descriptor:
            fill(tensor, data)
            assert handle.async_pwrite(tensor, descriptor, offset) == 0
            assert handle.wait() == 1
        assert contents(path)[offset:] == data

    if order == "read first":
        read()
    write(1)
    read()
    write(2)


def test_flags_of_the_callers_descriptor_do_not_matter(
    directory: Path, backend: str, make_handle: Any
) -> None:
    """O_APPEND would move every write to the end, O_DIRECT would refuse odd sizes; both stay the
    caller's own.
    """
    handle = make_handle(backend)
    path = directory / "file"
    for flags in (os.O_APPEND, os.O_DIRECT):
        path.write_bytes(bytes(1000))
        data = pattern(77)
        try:
            descriptor = os.open(path, os.O_RDWR | flags)
        except OSError:
            continue  # O_DIRECT is not everywhere
        try:
            before = os.lseek(descriptor, 0, os.SEEK_CUR)
            assert handle.sync_pwrite(
                torch.frombuffer(bytearray(data), dtype=torch.uint8), descriptor, 10
            )
            back = torch.zeros(77, dtype=torch.uint8)
            assert handle.sync_pread(back, descriptor, 10) == 1
            assert raw(back) == data
            assert os.lseek(descriptor, 0, os.SEEK_CUR) == before
        finally:
            os.close(descriptor)
        assert contents(path) == bytes(10) + data + bytes(1000 - 87)
