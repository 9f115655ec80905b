"""Bytes of a tensor against those of a file, read without a handle."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from aio.measure.files import drop_cache
from aio.measure.harness import BenchError

_BLOCK = 16 << 20


def compare_file(tensor: torch.Tensor, path: Path) -> None:
    """Raise BenchError unless the file holds exactly the bytes of a uint8 tensor.

    The page cache of the file is dropped first: what is compared is on the drive.
    """
    drop_cache(path)
    size = path.stat().st_size
    if size != len(tensor):
        raise BenchError(f"{path}: {size} bytes long, not {len(tensor)}")
    block = np.empty(min(_BLOCK, size), dtype=np.uint8)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for start in range(0, size, _BLOCK):
            wanted = tensor[start : start + _BLOCK].cpu().numpy()
            found = block[: len(wanted)]
            done = 0
            while done < len(found):
                count = os.preadv(descriptor, [found[done:].data], start + done)
                if count == 0:
                    raise BenchError(f"{path}: ends at byte {start + done} of {size}")
                done += count
            if not np.array_equal(found, wanted):
                first = start + int(np.flatnonzero(found != wanted)[0])
                raise BenchError(f"{path}: memory and file differ from byte {first}")
    finally:
        os.close(descriptor)


def compare_tensors(loaded: torch.Tensor, wanted: torch.Tensor, path: Path) -> None:
    """Raise BenchError unless both have the same bytes."""
    if not torch.equal(loaded, wanted):
        raise BenchError(f"{path}: the tensor that torch.load finds there is not the one saved")
