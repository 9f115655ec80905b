"""What a program does without this library: memory from malloc, locked with mlock."""

from __future__ import annotations

import ctypes
import os

import torch

from aio.measure.harness import BenchError

_PAGE = 4096
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mlock.argtypes = _LIBC.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.free.argtypes = (ctypes.c_void_p,)
_LIBC.free.restype = None
_LIBC.posix_memalign.argtypes = (
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_size_t,
    ctypes.c_size_t,
)


def allocate(nbytes: int) -> ctypes.c_void_p:
    """What DeepSpeed does: posix_memalign, then mlock, which faults every page in."""
    pointer = ctypes.c_void_p()
    error = _LIBC.posix_memalign(ctypes.byref(pointer), _PAGE, nbytes)
    if error:
        raise BenchError(f"posix_memalign of {nbytes} bytes: {os.strerror(error)}")
    try:
        _lock(pointer, nbytes)
    except BenchError:
        _LIBC.free(pointer)
        raise
    return pointer


def free(pointer: ctypes.c_void_p, nbytes: int) -> None:
    """munlock, then free."""
    _LIBC.munlock(pointer, nbytes)
    _LIBC.free(pointer)


def mlock(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, its pages locked."""
    _lock(ctypes.c_void_p(tensor.data_ptr()), tensor.nbytes)
    return tensor


def munlock(tensor: torch.Tensor) -> None:
    """The reverse."""
    _LIBC.munlock(tensor.data_ptr(), tensor.nbytes)


def _lock(pointer: ctypes.c_void_p, nbytes: int) -> None:
    if _LIBC.mlock(pointer, nbytes):
        message = os.strerror(ctypes.get_errno())
        raise BenchError(f"mlock of {nbytes} bytes: {message} (see ulimit -l)")


def status_bytes(name: str) -> int:
    """VmLck, VmRSS, VmHWM ... of this process in bytes."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    raise BenchError(f"/proc/self/status has no {name}")
