"""The files that the contestants move: prepared before anything is timed, and checked.

Files hold random data, are written through O_DIRECT where it works, allocated in full and
fsync'ed, and their page cache is dropped per file, so that a write is an overwrite of allocated
blocks and a read comes from the device.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .harness import BenchError

PAGE = 4096
_BLOCK = 16 << 20


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


@dataclass(frozen=True)
class Piece:
    """One tensor and where it lives in the files."""

    tensor: torch.Tensor
    path: Path
    offset: int = 0

    def bytes_view(self) -> torch.Tensor:
        return self.tensor.view(torch.uint8).reshape(-1)


class Check:
    """Sampled proof that a transfer really moved the bytes, outside the timed part."""

    def __init__(self, pieces: Sequence[Piece], spots: int = 16, seed: int = 7) -> None:
        choose = random.Random(seed)
        self._spots: list[tuple[Piece, int, int]] = []
        for piece in choose.sample(list(pieces), min(spots, len(pieces))):
            for _ in range(max(1, spots // len(pieces))):
                length = min(PAGE, piece.tensor.nbytes)
                start = choose.randrange(piece.tensor.nbytes - length + 1)
                self._spots.append((piece, start, length))

    def poison(self) -> None:
        """Change the sampled bytes in memory, so that those of an earlier transfer cannot pass."""
        for piece, start, length in self._spots:
            piece.bytes_view()[start : start + length] ^= 0xA5

    def __call__(self) -> None:
        """After a read or a write: the sampled bytes in memory are those in the file."""
        for piece, start, length in self._spots:
            with open(piece.path, "rb", buffering=0) as file:
                data = os.pread(file.fileno(), length, piece.offset + start)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            held = bytes(piece.bytes_view()[start : start + length].tolist())
            if data != held:
                raise BenchError(f"{piece.path} at {piece.offset + start}: memory and file differ")


def touched(nbytes: int) -> torch.Tensor:
    """Plain torch memory with every page present, so that no run pays its first-touch faults."""
    return torch.full((nbytes,), 1, dtype=torch.uint8)


def file_system(path: Path) -> str:
    """Type of the file system that holds `path`, from /proc/self/mountinfo."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    found = ""
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            left, _, right = line.partition(" - ")
            if left.split()[2] == wanted:
                found = right.split()[0]
    return found or "unknown"
