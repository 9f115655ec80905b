"""The files that are read and written: prepared before anything is timed, gone afterwards.

Files hold random data, are written through O_DIRECT where it works, allocated in full and
fsync'ed, and their page cache is dropped per file, so that a write is an overwrite of allocated
blocks and a read comes from the device.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from aio.measure.harness import BenchError

PAGE = 4096
_BLOCK = 16 << 20
_libc = ctypes.CDLL(None, use_errno=True)


def prepare_file(path: Path, nbytes: int) -> Path:
    """Write `nbytes` of random data to `path`, fsync it and drop its page cache."""
    buffer = mmap.mmap(-1, _BLOCK)
    buffer.write(os.urandom(_BLOCK))
    rewritable = nbytes % PAGE == 0
    descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, direct=rewritable)
    try:
        for offset in range(0, nbytes, _BLOCK):
            # A counter in each block keeps the blocks different without generating gigabytes.
            buffer[:8] = offset.to_bytes(8, "little")
            view = memoryview(buffer)[: min(_BLOCK, nbytes - offset)]
            while view:
                written = os.pwrite(descriptor, view, offset)
                offset, view = offset + written, view[written:]
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return path


def prepare_files(folder: Path, count: int, nbytes: int) -> list[Path]:
    """`count` files of `nbytes` of random data each, named `t.0`, `t.1`, ... as fio is told."""
    folder.mkdir(parents=True)
    paths = [folder / f"t.{number}" for number in range(count)]
    buffer = mmap.mmap(-1, nbytes)
    for path in paths:
        buffer[:] = os.urandom(nbytes)
        descriptor = _open(path, os.O_WRONLY | os.O_CREAT, direct=nbytes % PAGE == 0)
        try:
            if os.pwrite(descriptor, buffer, 0) != nbytes:
                raise BenchError(f"{path}: short write while preparing it")
            if path is paths[-1]:
                # With O_DIRECT the data is out already, and one commit of the journal covers the
                # metadata of every file before; an fsync for each would take longer than the runs.
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    for path in paths:
        drop_cache(path, write_back=False)
    return paths


def _open(path: Path, flags: int, direct: bool) -> int:
    if direct:
        try:
            return os.open(path, flags | os.O_DIRECT, 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    return os.open(path, flags, 0o600)


def drop_cache(path: Path, write_back: bool = True) -> None:
    """Drop the page cache of one file, after writing it back if asked; needs no root."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if write_back:
            os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """fsync(2): what was written to the file through the page cache is on the drive afterwards."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def resident_share(path: Path) -> float:
    """The share of the file that the page cache holds, from 0 to 1 (mincore(2))."""
    size = path.stat().st_size
    if size == 0:
        return 0.0
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        # numpy tells the address; the view must be gone before the mapping is.
        view = np.frombuffer(mapped, dtype=np.uint8)
        failed = _libc.mincore(ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), pages)
        reason = ctypes.get_errno()
        del view
    if failed:
        raise OSError(reason, os.strerror(reason), str(path))
    return sum(page & 1 for page in pages) / len(pages)


@contextmanager
def work_folder(directory: Path, prefix: str) -> Iterator[Path]:
    """An empty folder of our own in `directory`, gone afterwards whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=directory))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
