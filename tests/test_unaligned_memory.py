"""Memory at any address works: torch's own, and slices of pinned tensors (B-02, B-05)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.buffers import fill, locked, pattern, raw, shifted
from support.files import contents, drop_cache

SHIFTS = [0, 1, 2, 4, 8, 64, 512, 513, 4095]
# Fact 1: the kernel forgives a small misaligned transfer inside one page, so only larger ones prove
# anything.
SIZES = [4096, 8192, 65536 + 3, 1 << 20]


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("pinned", [False, True], ids=["plain", "locked"])
def test_shifts(directory: Path, backend: str, make_handle: Any, pinned: bool, shift: int) -> None:
    handle = make_handle(backend, block_size=65536)
    for nbytes in SIZES:
        data = pattern(nbytes)
        path = directory / "file"
        if pinned:
            tensor = locked(handle, shift + nbytes)[shift:]
            assert handle.is_pinned(tensor)
        else:
            tensor = shifted(nbytes, shift)
        assert tensor.data_ptr() % 4096 == shift
        for offset in (0, 1000):
            path.unlink(missing_ok=True)
            fill(tensor, data)
            assert handle.sync_pwrite(tensor, str(path), offset) == 1
            assert contents(path) == bytes(offset) + data
            drop_cache(path)
            tensor.zero_()
            assert handle.sync_pread(tensor, str(path), offset) == 1
            assert raw(tensor) == data


def test_torchs_own_tensors(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    data = pattern(1 << 20)
    path = directory / "file"
    path.write_bytes(data)
    kept = [torch.empty(1 << 20, dtype=torch.uint8) for _ in range(8)]
    for tensor in kept:
        handle.async_pread(tensor, str(path))
    assert handle.wait() == 8
    assert all(raw(tensor) == data for tensor in kept)
