"""Memory at a given address: seen as an array, or mapped there."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

MAP_FIXED_NOREPLACE = 0x100000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def memory_at(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """An array over memory that is not its own."""
    room = (ctypes.c_ubyte * nbytes).from_address(address)
    return np.ctypeslib.as_array(room)


@contextmanager
def mapped_at(address: int, nbytes: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Fresh ordinary memory at exactly `address`; OSError where something is mapped already."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
    got = _libc.mmap(address, nbytes, protection, flags, -1, 0)
    if got != address:
        if got not in (None, ctypes.c_void_p(-1).value):
            _libc.munmap(got, nbytes)
        raise OSError(ctypes.get_errno(), f"cannot map {nbytes} bytes at {address:#x}")
    try:
        yield memory_at(address, nbytes)
    finally:
        _libc.munmap(address, nbytes)
