"""A DLPack exporter whose shape cannot be is refused before any byte moves."""

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
