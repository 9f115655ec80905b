"""A tensor without elements completes, is counted, and moves nothing (A-06)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

import aio

EMPTY = [
    torch.empty(0),
    torch.empty((0, 5), dtype=torch.bfloat16),
    torch.empty((3, 0, 2), dtype=torch.int64),
    torch.empty(10)[10:],
    torch.empty((4, 4)).t()[:, 4:],
]


@pytest.mark.parametrize("tensor", EMPTY, ids=lambda tensor: str(tuple(tensor.shape)))
def test_reads_and_writes(
    directory: Path, backend: str, make_handle: Any, tensor: torch.Tensor
) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    name = str(path)
    assert handle.sync_pwrite(tensor, name) == 1
    assert path.stat().st_size == 0
    assert handle.sync_pread(tensor, name) == 1
    assert handle.write(tensor, name, False) == 0
    assert handle.read(tensor, name, False) == 0
    assert handle.pwrite(tensor, name, False, False) == 1
    assert handle.pread(tensor, name, False, False) == 1
    assert handle.async_pwrite(tensor, name) == 0
    assert handle.async_pread(tensor, name) == 0
    assert handle.wait() == 2
    assert handle.submit_pwrite(tensor, name).result(60) == 0
    assert handle.submit_pread(tensor, name).result(60) == 0
    assert handle.pwrite_many([(tensor, name)] * 3) == 3
    assert handle.pread_many([(tensor, name)] * 3) == 3
    assert path.stat().st_size == 0


def test_a_write_creates_the_file_and_extends_nothing(
    directory: Path, backend: str, make_handle: Any
) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    assert handle.sync_pwrite(torch.empty(0), str(path), 10_000) == 1
    assert path.stat().st_size == 0
    path.write_bytes(b"kept")
    assert handle.sync_pwrite(torch.empty(0), str(path), 0) == 1
    assert path.read_bytes() == b"kept"


def test_a_read_still_needs_the_file(directory: Path, backend: str, make_handle: Any) -> None:
    with pytest.raises(aio.AioError) as caught:
        make_handle(backend).sync_pread(torch.empty(0), str(directory / "missing"))
    assert caught.value.errno == errno.ENOENT


def test_no_requests_at_all(backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    assert handle.wait() == 0
    assert handle.pread_many([]) == 0
    assert handle.pwrite_many([]) == 0
    assert handle.submit_pread_many([]).result(60) == 0


def test_statistics_of_nothing(directory: Path, backend: str, make_handle: Any) -> None:
    """Percentiles of no transfer are defined."""
    handle = make_handle(backend)
    before = handle.stats()
    assert before["latency"]["count"] == 0
    assert handle.sync_pwrite(torch.empty(0), str(directory / "file")) == 1
    after = handle.stats()
    assert after["requests"]["write"] == 1
    assert sum(after["bytes"]["write"].values()) == 0
    assert after["failed"] == 0
