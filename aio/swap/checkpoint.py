"""Checkpoints that are written tensor by tensor, and replace the last one at once.

1. The file is what ``torch.save`` writes: a ZIP archive without compression, of ``data.pkl`` and
   one record for each storage. ``torch.load`` reads it, and with ``mmap=True`` only as far as
   needed. ``torch.save`` itself needs all tensors in memory at the same time.
2. It is written beside the old one, made durable, and renamed over it; then the directory is made
   durable. A kill at any moment leaves the old one or the new one.
3. Unfinished files are locked while they are written. Those without a lock were left by a process
   that died, and the next save to the directory deletes them.
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pickle
import re
import secrets
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from aio.swap.layout import octets_of
from aio.swap.state_layout import round_up

_logger = logging.getLogger("aio.swap")

_ROOT = "archive"
_RECORD_ALIGNMENT = 64  # bytes, as torch.save has it
_LOCAL_HEADER, _ZIP64_EXTRA, _EXTRA_HEADER = 30, 20, 4  # bytes: APPNOTE.TXT 4.3.7, 4.5.3, 4.5.1
_PADDING_ID = 0x4246  # torch's: "FB"
_COPY_BYTES = 16 << 20
_TEMPORARY = re.compile(r"\.deepnvme-save-[0-9a-f]{16}")


@dataclass(frozen=True)
class SavedTensor:
    """A tensor in what is pickled; its bytes follow later."""

    record: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class _SavedStorage:
    record: int
    nbytes: int


class _Pickler(pickle.Pickler):
    """Pickles SavedTensors as torch.save pickles tensors."""

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, _SavedStorage):
            return ("storage", torch.UntypedStorage, str(obj.record), "cpu", obj.nbytes)
        return None

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, SavedTensor):
            return NotImplemented
        storage = _SavedStorage(obj.record, obj.nbytes)
        return (
            torch._utils._rebuild_tensor_v3,
            (storage, 0, obj.shape, obj.stride, False, OrderedDict(), obj.dtype),
        )


def write_archive(
    file: IO[bytes],
    described: Any,
    tensors: Iterable[torch.Tensor],
    told: Callable[[int], object],
) -> None:
    """Write a checkpoint. ``described`` has SavedTensors in place of tensors; ``tensors`` are those
    of their records, in order, one at a time, dense. ``told(nbytes)`` is called as bytes of tensors
    are written.
    """
    pickled = io.BytesIO()
    _Pickler(pickled, protocol=2).dump(described)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _write_record(archive, file, "data.pkl", [pickled.getbuffer()])
        _write_record(archive, file, "byteorder", [sys.byteorder.encode()])
        for record, tensor in enumerate(tensors):
            octets: memoryview = octets_of(tensor.cpu()).numpy().data
            parts = (octets[at : at + _COPY_BYTES] for at in range(0, len(octets), _COPY_BYTES))
            _write_record(archive, file, f"data/{record}", parts, told)
        _write_record(archive, file, "version", [b"3\n"])


def _write_record(
    archive: zipfile.ZipFile,
    file: IO[bytes],
    name: str,
    parts: Iterable[bytes | memoryview],
    told: Callable[[int], object] = lambda nbytes: None,
) -> None:
    info = zipfile.ZipInfo(f"{_ROOT}/{name}")
    start = file.tell() + _LOCAL_HEADER + len(info.filename) + _ZIP64_EXTRA + _EXTRA_HEADER
    padding = round_up(start, _RECORD_ALIGNMENT) - start
    info.extra = struct.pack("<HH", _PADDING_ID, padding) + b"Z" * padding
    with archive.open(info, "w", force_zip64=True) as record:
        for part in parts:
            record.write(part)
            told(len(part))


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` when all goes well, and else is gone."""
    directory = path.parent
    _delete_leftovers(directory)
    temporary, descriptor = _new_temporary(directory)
    try:
        with open(descriptor, "w+b", buffering=1 << 20) as file:
            yield file
            file.flush()
            os.fsync(descriptor)
            os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(directory)


def _new_temporary(directory: Path) -> tuple[Path, int]:
    while True:
        path = directory / f".deepnvme-save-{secrets.token_hex(8)}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                return path, descriptor
        except BaseException:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        os.close(descriptor)  # another save took it for a leftover before it was locked


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete_leftovers(directory: Path) -> None:
    with os.scandir(directory) as entries:
        found = [Path(entry.path) for entry in entries if _TEMPORARY.fullmatch(entry.name)]
    for path in found:
        try:
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
        except (BlockingIOError, FileNotFoundError):
            continue  # being written, or done
        except OSError as error:
            _logger.warning("an unfinished checkpoint is left: %s", error)
