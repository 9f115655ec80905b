"""A tensor of more than 2 GiB arrives whole, though no call moves so much (A-13, A-14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.files import need_memory, need_room

NBYTES = (1 << 31) + (200 << 20) + 8  # beyond 2 GiB, a multiple of 8 and of no sector


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
