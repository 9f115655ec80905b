"""Offsets past 2 GiB, 4 GiB and 1 TiB reach the file as they were given (A-14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.buffers import pattern, raw, tensor_of
from support.files import drop_cache, piece

OFFSETS = [
    (1 << 31) - 4096,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 100,
    1 << 32,
    (1 << 32) + 4096,
    (1 << 40) + 513,
]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_small_tensor_far_out(
    directory: Path, backend: str, make_handle: Any, parallelism: int
) -> None:
    handle = make_handle(backend, block_size=4096, intra_op_parallelism=parallelism)
    for offset in OFFSETS:
        data = pattern(3 * 4096 + 5)
        path = directory / hex(offset)
        with open(path, "wb") as file:
            file.truncate(6 << 30)
        assert handle.sync_pwrite(tensor_of(data), str(path), offset) == 1
        assert path.stat().st_size == max(6 << 30, offset + len(data))
        assert piece(path, offset, len(data)) == data
        # Nothing may have landed where the offset points once its upper bits are lost.
        for lost in (offset & 0x7FFFFFFF, offset & 0xFFFFFFFF):
            if lost != offset:
                assert piece(path, lost, len(data)) == bytes(len(data))
        drop_cache(path)
        back = torch.zeros(len(data), dtype=torch.uint8)
        assert handle.sync_pread(back, str(path), offset) == 1
        assert raw(back) == data
