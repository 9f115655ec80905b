"""A source changed after a write is submitted: the same for every kind of memory (D-03).

What a completed call wrote does not change. What is in flight may be of before or of after, byte by
byte, and is nothing else: whether the memory is pinned, copied through a block or strided.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.buffers import locked, pattern, raw, shifted

NBYTES = 1 << 18
ROUNDS = 10

MEMORY: dict[str, Callable[[Any], torch.Tensor]] = {
    "locked": lambda handle: locked(handle, NBYTES),
    "plain": lambda handle: torch.empty(NBYTES, dtype=torch.uint8),
    "odd address": lambda handle: shifted(NBYTES, 1),
    "strided": lambda handle: torch.empty(NBYTES, 2, dtype=torch.uint8)[:, 0],
}
KINDS = pytest.mark.parametrize("kind", MEMORY)


@KINDS
def test_after_the_call_it_is_a_snapshot(
    directory: Path, backend: str, make_handle: Any, kind: str
) -> None:
    """What changes after a sync call, or after wait(), is not in the file."""
    handle = make_handle(backend)
    tensor = MEMORY[kind](handle)
    path = directory / "file"
    for seed in range(2):
        tensor.copy_(torch.frombuffer(bytearray(pattern(NBYTES, seed)), dtype=torch.uint8))
        if seed == 0:
            handle.sync_pwrite(tensor, path)
        else:
            handle.async_pwrite(tensor, path)
            handle.wait()
        tensor.zero_()
        assert path.read_bytes() == pattern(NBYTES, seed)


@KINDS
def test_in_flight_each_byte_is_old_or_new(
    directory: Path, backend: str, make_handle: Any, kind: str
) -> None:
    handle = make_handle(backend, queue_depth=2, block_size=16384)
    tensor = MEMORY[kind](handle)
    path = directory / "file"
    for _ in range(ROUNDS):
        tensor.fill_(1)
        handle.async_pwrite(tensor, path)
        tensor.fill_(2)
        assert handle.wait() == 1
        found = np.fromfile(path, dtype=np.uint8)
        assert found.size == NBYTES
        assert set(np.unique(found).tolist()) <= {1, 2}
        assert raw(tensor) == bytes([2]) * NBYTES
