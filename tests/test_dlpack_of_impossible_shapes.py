"""A DLPack exporter whose shape or strides cannot be is refused before any byte moves."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aio
from tests.fuzz.buffers import Exporter, dlpack_tensor

LARGE = 1 << 62


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize(
    "shape", [(-1,), (4, -2), (-3, -5), (LARGE, 8), (8, LARGE), (LARGE, LARGE, LARGE)]
)
def test_refused(tmp_path: Path, shape: tuple[int, ...], dense: bool) -> None:
    memory = np.arange(64, dtype=np.uint8)
    lengths = (ctypes.c_int64 * len(shape))(*shape)
    strides = None if dense else (ctypes.c_int64 * len(shape))(*(3 for _ in shape))
    tensor: Any = dlpack_tensor(memory.ctypes.data, 8, lengths, strides)
    exporter = Exporter(tensor, 1, 1, 0)
    with (
        aio.aio_handle() as handle,
        pytest.raises(ValueError, match="DLPack tensor"),
    ):
        handle.sync_pwrite(exporter, tmp_path / "file")
    assert exporter.deleted == 1
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 2), (1 << 61, 1)),  # more bytes than 64 bits
        ((2, 2), (-(1 << 61), 1)),
        ((4, 2), (1 << 59, 1)),  # only with the length
        ((4, 2), (-(1 << 59), 1)),
        ((2, 2), (1 << 59, 1 << 59)),  # beyond the last address
        ((2, 2), (-(1 << 59), 1)),  # before the first
    ],
)
def test_strides_that_reach_too_far(
    tmp_path: Path, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    memory = np.arange(64, dtype=np.uint64)
    lengths = (ctypes.c_int64 * len(shape))(*shape)
    steps = (ctypes.c_int64 * len(shape))(*strides)
    tensor: Any = dlpack_tensor(memory.ctypes.data, 64, lengths, steps)
    exporter = Exporter(tensor, 1, 1, 0)
    with aio.aio_handle() as handle, pytest.raises(ValueError, match=r"stride.* exporter"):
        handle.sync_pwrite(exporter, tmp_path / "file")
    assert exporter.deleted == 1
    assert not (tmp_path / "file").exists()


def test_stride_of_one_element_is_not_used(tmp_path: Path) -> None:
    memory = np.arange(8, dtype=np.uint64)
    lengths = (ctypes.c_int64 * 2)(1, 4)
    steps = (ctypes.c_int64 * 2)((1 << 63) - 1, 2)
    tensor: Any = dlpack_tensor(memory.ctypes.data, 64, lengths, steps)
    with aio.aio_handle() as handle:
        handle.sync_pwrite(Exporter(tensor, 1, 1, 0), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == memory[::2].tobytes()
