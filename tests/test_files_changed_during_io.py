"""Files cut, deleted or replaced while requests run: right bytes or ENODATA (A-05, B-17)."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from support.buffers import locked, pattern, raw, tensor_of
from support.child import child_answer

NBYTES = 1_000_003
BLOCK = 65536


def test_cut_and_grown_by_others(directory: Path, backend: str) -> None:
    """The bytes that are there are right; never data where the file had ended for good."""
    script = """
import errno, json, os, signal, sys, time
import torch, aio
from support.buffers import locked, pattern, raw
backend, path, nbytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = pattern(nbytes)
open(path, "wb").write(data)
cutter = os.fork()
if cutter == 0:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        os.truncate(path, nbytes // 3)
        os.truncate(path, nbytes)
seen = {"whole": 0, "short": 0, "wrong": 0}
expected = torch.frombuffer(bytearray(data), dtype=torch.uint8)
with aio.aio_handle(backend=backend, block_size=65536, intra_op_parallelism=2) as handle:
    for target in (torch.empty(nbytes, dtype=torch.uint8), locked(handle, nbytes)) * 40:
        target.fill_(0x5A)
        try:
            handle.async_pread(target, path)
            handle.wait()
            seen["whole"] += 1
            held = target
        except aio.AioError as error:
            seen["short"] += 1
            seen["wrong"] += error.errno != errno.ENODATA or not 0 <= error.nbytes_done < nbytes
            continue
        # Zeros where the file was cut and grown again, its old bytes elsewhere, nothing else.
        seen["wrong"] += not bool(((held == expected) | (held == 0)).all())
        seen["wrong"] += not torch.equal(held[: nbytes // 3], expected[: nbytes // 3])
    seen["in flight"] = handle.stats()["in_flight"]
os.kill(cutter, signal.SIGTERM)
os.waitpid(cutter, 0)
print(json.dumps(seen))
"""
    seen = child_answer(script, backend, directory / "file", NBYTES)
    assert seen["whole"] + seen["short"] == 80
    assert (seen["wrong"], seen["in flight"]) == (0, 0)


def test_cut_before_the_transfer(directory: Path, backend: str, make_handle: Any) -> None:
    """Through a descriptor whose file was cut after the last look: ENODATA."""
    handle = make_handle(backend)
    path = directory / "file"
    path.write_bytes(pattern(NBYTES))
    with path.open("r+b") as file:
        os.ftruncate(file.fileno(), 1000)
        for call in (handle.sync_pread, handle.submit_pread):
            with pytest.raises(aio.AioError) as caught:
                call(bytearray(NBYTES), file.fileno())
            assert caught.value.errno == errno.ENODATA


def test_deleted_and_replaced(directory: Path, backend: str, make_handle: Any) -> None:
    """A request keeps the file that it opened, under whatever name, or none."""
    handle = make_handle(backend, block_size=BLOCK, queue_depth=2)
    for index in range(20):
        path = directory / f"{index}"
        path.write_bytes(pattern(NBYTES, index))
        target = locked(handle, NBYTES) if index % 2 else torch.zeros(NBYTES, dtype=torch.uint8)
        reading = handle.submit_pread(target, path)
        if index % 3 == 0:
            path.unlink()
        else:
            (directory / "new").write_bytes(bytes(5))
            os.replace(directory / "new", path)
        assert reading.result(60) == NBYTES
        assert raw(target) == pattern(NBYTES, index)
        assert path.exists() == bool(index % 3)
    written = tensor_of(pattern(NBYTES, 99))
    with (directory / "kept").open("w+b") as file:
        writing = handle.submit_pwrite(written, directory / "kept")
        (directory / "kept").unlink()
        assert writing.result(60) == NBYTES
        assert file.read() == pattern(NBYTES, 99)
    assert not (directory / "kept").exists()


def test_directory_is_gone(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    inner = directory / "inner"
    inner.mkdir()
    futures = [handle.submit_pwrite(pattern(50_000, n), inner / f"{n}") for n in range(10)]
    for path in inner.iterdir():
        path.unlink()
    inner.rmdir()
    assert [future.result(60) for future in futures] == [50_000] * 10
    for call in (handle.sync_pwrite, handle.async_pwrite, handle.submit_pwrite):
        with pytest.raises(aio.AioError) as caught:
            call(b"late", inner / "late")
        assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(inner / "late"))
