"""Memory with known bytes, at chosen addresses, or between forbidden pages."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import torch

PAGE = mmap.PAGESIZE


def pattern(nbytes: int, seed: int = 0) -> bytes:
    """`nbytes` bytes that a misplaced, lost or repeated block cannot imitate."""
    return np.random.default_rng(seed).bytes(nbytes)


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor in the order of its elements, whatever its dtype and strides."""
    if tensor.numel() == 0:
        return b""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def tensor_of(data: bytes, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """A tensor in ordinary memory that owns a copy of `data`."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone().view(dtype)


def fill(tensor: torch.Tensor, data: bytes) -> None:
    """Put `data` into a contiguous tensor."""
    tensor.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def locked(handle: Any, nbytes: int) -> torch.Tensor:
    """A pinned tensor of `nbytes` bytes."""
    pinned: torch.Tensor = handle.new_cpu_locked_tensor(nbytes, torch.empty(0, dtype=torch.uint8))
    return pinned


def shifted(nbytes: int, shift: int, alignment: int = PAGE) -> torch.Tensor:
    """`nbytes` of ordinary memory whose address is `shift` modulo `alignment`."""
    room = torch.empty(nbytes + alignment + shift, dtype=torch.uint8)
    start = -room.data_ptr() % alignment + shift
    return room[start : start + nbytes]


class Guarded:
    """`nbytes` of memory that end before, or begin after, a page which nobody may touch."""

    def __init__(self, nbytes: int, at_end: bool = True) -> None:
        inside = max(-(-nbytes // PAGE), 1) * PAGE
        self._map = mmap.mmap(-1, inside + 2 * PAGE)
        view = np.frombuffer(self._map, dtype=np.uint8)
        base = view.ctypes.data
        self._forbid(base)
        self._forbid(base + PAGE + inside)
        start = PAGE + (inside - nbytes if at_end else 0)
        self.array = view[start : start + nbytes]
        self.tensor = torch.from_numpy(self.array)

    @staticmethod
    def _forbid(address: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
