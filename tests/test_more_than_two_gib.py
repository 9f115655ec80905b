"""Tensors beyond 2 and 4 GiB arrive whole, though no call moves so much (A-13, A-14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.files import need_memory, need_room

pytestmark = pytest.mark.not_sanitized("gigabytes take minutes; few of them go through other code")

NBYTES = (1 << 31) + (200 << 20) + 8  # beyond 2 GiB, a multiple of 8 and of no sector
FOUR_GIB = 1 << 32
BEYOND = FOUR_GIB + (300 << 20) + 8


def numbered(first: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Every 8 bytes hold their own number, so no piece can stand in for another."""
    return np.arange(first // 8, (first + nbytes) // 8, dtype=np.uint64)


def check_file(path: Path, nbytes: int) -> None:
    assert path.stat().st_size == nbytes
    step = 64 << 20
    with open(path, "rb") as file:
        for start in range(0, nbytes, step):
            want = numbered(start, min(step, nbytes - start))
            found = np.fromfile(file, dtype=np.uint64, count=want.size)
            assert np.array_equal(found, want), f"differs in the 64 MiB from {start}"


def test_on_a_drive(disk: Path, make_handle: Any) -> None:
    need_memory(NBYTES + (2 << 30))
    need_room(disk, NBYTES + (1 << 30))
    handle = make_handle(block_size=(1 << 31) - 1)
    path = disk / "file"
    numbers = torch.from_numpy(numbered(0, NBYTES).view(np.int64))
    assert handle.sync_pwrite(numbers, str(path)) == 1
    check_file(path, NBYTES)
    numbers.fill_(-1)
    assert handle.sync_pread(numbers, str(path)) == 1
    assert np.array_equal(numbers.numpy().view(np.uint64), numbered(0, NBYTES))
    assert sum(handle.stats()["bytes"]["read"].values()) >= NBYTES


def test_a_single_buffered_transfer(tmpfs: Path, make_handle: Any) -> None:
    """On a file system that is a memory copy anyway, the block may be the whole tensor: the call is
    still cut.
    """
    need_memory(2 * NBYTES + (2 << 30))
    need_room(tmpfs, NBYTES)
    handle = make_handle("posix", block_size=4 << 30)
    path = tmpfs / "file"
    numbers = torch.from_numpy(numbered(0, NBYTES).view(np.int64))
    assert handle.sync_pwrite(numbers, str(path)) == 1
    check_file(path, NBYTES)


@pytest.fixture(scope="module")
def giant() -> Any:
    """Memory beyond 4 GiB, shared by the engines."""
    need_memory(BEYOND + (4 << 30))
    tensor = torch.empty(BEYOND, dtype=torch.uint8)
    yield tensor
    del tensor


def test_a_read_beyond_four_gib(
    tmpfs: Path, backend: str, make_handle: Any, giant: torch.Tensor
) -> None:
    """By one worker, from a file whose few written bytes tell where they came from."""
    handle = make_handle(backend, block_size=4 << 30, intra_op_parallelism=1)
    path = tmpfs / "file"
    edges = (0, 1 << 30, 0x7FFFF000, 1 << 31, FOUR_GIB)
    marks = sorted({edge + step for edge in edges for step in (-8, 0, 4096)} - {-8} | {BEYOND - 8})
    with path.open("wb") as file:
        file.truncate(BEYOND)
        for mark in marks:
            file.seek(mark)
            file.write((mark + 1).to_bytes(8, "little"))
    giant[::4096] = 0xEE
    assert handle.sync_pread(giant, path) == 1
    found = giant.numpy()[: BEYOND // 8 * 8].view(np.uint64)
    for mark in marks:
        assert int(found[mark // 8]) == mark + 1
        found[mark // 8] = 0
    assert not found[:: 4096 // 8].any(), "a page that the read left out"
    assert sum(handle.stats()["bytes"]["read"].values()) == BEYOND
