"""Asking for more bytes than the file has is an error, for fewer is exact (B-17)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import aio
from support.buffers import pattern, raw, tensor_of

COUNT = 8192 + 100


@pytest.mark.parametrize("validate", [False, True])
def test_twice_the_bytes(directory: Path, backend: str, make_handle: Any, validate: bool) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    assert handle.sync_pwrite(tensor_of(pattern(2 * COUNT), torch.float16), str(path)) == 1
    wide = torch.full((COUNT,), 7.0, dtype=torch.float32)
    for way in (
        lambda: handle.sync_pread(wide, str(path)),
        lambda: handle.read(wide, str(path), validate),
        lambda: handle.pread(wide, str(path), validate, False),
    ):
        with pytest.raises(aio.AioError) as caught:
            way()
        assert caught.value.errno == errno.ENODATA
        assert caught.value.nbytes == 4 * COUNT
        assert caught.value.nbytes_done <= 2 * COUNT
    assert wide.tolist() == [7.0] * COUNT
    assert handle.wait() == 0


def test_half_the_bytes(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    data = pattern(2 * COUNT)
    assert handle.sync_pwrite(tensor_of(data, torch.float16), str(path)) == 1
    half = torch.zeros(COUNT // 2, dtype=torch.float16)
    assert handle.sync_pread(half, str(path)) == 1
    assert raw(half) == np.fromfile(path, dtype=np.uint8).tobytes()[: len(data) // 2]
