"""Any size works at any parallelism, block size and depth (B-01)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aio
from support.buffers import pattern, raw, tensor_of
from support.files import contents


@pytest.mark.parametrize("parallelism", [1, 3, 4, 7])
def test_513000_halves(directory: Path, backend: str, make_handle: Any, parallelism: int) -> None:
    handle = make_handle(backend, intra_op_parallelism=parallelism)
    data = pattern(2 * 513_000)
    path = directory / "file"
    assert handle.sync_pwrite(tensor_of(data, torch.float16), str(path)) == 1
    assert np.fromfile(path, dtype=np.uint8).tobytes() == data
    back = handle.new_cpu_locked_tensor(513_000, torch.empty(0, dtype=torch.float16))
    assert back.numel() == 513_000
    assert handle.sync_pread(back, str(path)) == 1
    assert raw(back) == data
    assert handle.get_alignment() == parallelism * 512


@given(
    nbytes=st.integers(1, 300_000),
    offset=st.integers(0, 20_000),
    parallelism=st.integers(1, 8),
    block_size=st.sampled_from([512, 4096, 5000, 65536, 1 << 20]),
    queue_depth=st.sampled_from([1, 2, 32]),
    single_submit=st.booleans(),
    overlap_events=st.booleans(),
)
def test_round_trip(
    directory: Path,
    backend: str,
    nbytes: int,
    offset: int,
    parallelism: int,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
) -> None:
    path = directory / "file"
    path.unlink(missing_ok=True)
    data = pattern(nbytes)
    with aio.aio_handle(
        block_size, queue_depth, single_submit, overlap_events, parallelism, backend=backend
    ) as handle:
        assert handle.sync_pwrite(tensor_of(data), str(path), offset) == 1
        assert contents(path) == bytes(offset) + data
        back = torch.full((nbytes,), 0x5A, dtype=torch.uint8)
        assert handle.sync_pread(back, str(path), offset) == 1
        assert raw(back) == data
