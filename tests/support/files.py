"""Files as plain Python sees them: the model that every result of the library is compared with."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from aio.measure.files import drop_cache as drop_cache


class FileModel:
    """The bytes that a file must have after writes at offsets, holes being zero."""

    def __init__(self, data: bytes = b"") -> None:
        self._bytes = bytearray(data)

    def write(self, offset: int, data: bytes) -> None:
        """What pwrite does: extends with zeros, never truncates; no bytes change nothing."""
        if data and len(self._bytes) < offset:
            self._bytes.extend(bytes(offset - len(self._bytes)))
        self._bytes[offset : offset + len(data)] = data

    def read(self, offset: int, nbytes: int) -> bytes:
        """What pread returns."""
        return bytes(self._bytes[offset : offset + nbytes])

    def content(self) -> bytes:
        """The whole file."""
        return bytes(self._bytes)


def contents(path: Path) -> bytes:
    """The whole file, through the page cache."""
    return path.read_bytes()


def piece(path: Path, offset: int, nbytes: int) -> bytes:
    """`nbytes` of the file at `offset`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, nbytes, offset)
    finally:
        os.close(descriptor)


def cached_pages(path: Path) -> tuple[int, int]:
    """How many pages of the file the page cache holds, and how many it has (mincore)."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        view = np.frombuffer(mapped, dtype=np.uint8)
        resident = (ctypes.c_ubyte * pages)()
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.mincore(ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), resident)
        error = ctypes.get_errno()
        del view
    if done != 0:
        raise OSError(error, "mincore")
    return sum(byte & 1 for byte in resident), pages


def need_room(directory: Path, nbytes: int) -> None:
    """Skip where the file system has less than `nbytes` left."""
    free = os.statvfs(directory)
    if free.f_bavail * free.f_frsize < nbytes:
        pytest.skip(f"{directory} has less than {nbytes >> 20} MiB left")


def need_memory(nbytes: int) -> None:
    """Skip where less than `nbytes` of memory is available."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:") and int(line.split()[1]) * 1024 < nbytes:
            pytest.skip(f"less than {nbytes >> 20} MiB of memory available")


def direct_alignment(path: Path) -> tuple[int, int]:
    """What statx says of direct I/O on the file: bytes that addresses and offsets are multiples of;
    skip where silent.
    """
    answer = (ctypes.c_uint8 * 256)()
    libc = ctypes.CDLL(None, use_errno=True)
    at_current_directory, direct_io_alignment = -100, 0x2000
    if libc.statx(at_current_directory, os.fsencode(path), 0, direct_io_alignment, answer) != 0:
        raise OSError(ctypes.get_errno(), "statx", str(path))
    mask = int.from_bytes(answer[0:4], "little")
    memory = int.from_bytes(answer[0x98:0x9C], "little")
    offset = int.from_bytes(answer[0x9C:0xA0], "little")
    if not mask & direct_io_alignment or not offset:
        pytest.skip(f"{path.parent} does not say that it takes direct I/O (STATX_DIOALIGN)")
    return memory, offset


def fill_up(path: Path) -> None:
    """Take all of the room."""
    with path.open("wb", buffering=0) as rest:
        try:
            while True:
                rest.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
