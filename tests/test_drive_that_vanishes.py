"""A drive that goes away ends every request with an error, and hangs nobody (C-03, C-16)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from support.buffers import pattern, raw, tensor_of
from support.counters import until
from support.fuse import fuse_mount

NBYTES = 200_000
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENODEV)


def test_requests_in_flight(tmp_path: Path, disk: Path, backend: str, make_handle: Any) -> None:
    """Those on the drive fail, all of them; those on another drive do not."""
    handle = make_handle(backend, block_size=65536, queue_depth=64)
    with fuse_mount(tmp_path / "fuse") as drive:
        held = drive.path / "held-file"
        held.touch()
        reads = [(tensor_of(bytes(NBYTES)), held) for _ in range(5)]
        with held.open("r+b") as file:
            file.truncate(NBYTES)
        futures = [handle.submit_pread(*item) for item in reads]
        futures.append(handle.submit_pwrite(tensor_of(pattern(NBYTES)), held))
        for _ in range(3):
            handle.async_pread(torch.empty(NBYTES, dtype=torch.uint8), held)
        handle.async_pwrite(tensor_of(pattern(NBYTES)), disk / "elsewhere")
        until(lambda: (disk / "elsewhere").stat().st_size == NBYTES, "the other drive's write")
        assert not any(future.done() for future in futures)
        drive.vanish()
        for future in futures:
            error = future.exception(60)
            assert isinstance(error, aio.AioError)
            assert error.errno in GONE
            assert error.filename == str(held)
        with pytest.raises(aio.AioError) as caught:
            handle.wait()
        assert len(caught.value.failures) == 3
        assert {error.errno for error in caught.value.failures} <= set(GONE)
        with pytest.raises(aio.AioError) as caught:
            handle.sync_pwrite(b"x", drive.path / "new")
        assert caught.value.errno in GONE
    assert (disk / "elsewhere").read_bytes() == pattern(NBYTES)
    back = torch.zeros(NBYTES, dtype=torch.uint8)
    assert handle.sync_pread(back, disk / "elsewhere") == 1
    assert raw(back) == pattern(NBYTES)
    assert handle.wait() == 0
    assert handle.stats()["in_flight"] == 0
