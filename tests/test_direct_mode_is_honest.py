"""Bytes that the statistics call direct did not pass through the page cache (F-03)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from support.buffers import fill, locked, pattern, raw, shifted
from support.files import cached_pages, contents, drop_cache

NBYTES = 64 << 20
DATA = pattern(NBYTES)


@pytest.fixture
def direct_disk(disk: Path) -> Path:
    try:
        os.close(os.open(disk / "probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError as error:
        pytest.skip(f"{disk} refuses O_DIRECT: {error}")
    return disk


def moved(handle: Any, way: str) -> tuple[int, int]:
    """Bytes past the page cache and bytes through it, as the handle tells."""
    told = handle.stats()["bytes"][way]
    return told["direct"] + told["fixed"] + told["staged"], told["buffered"]


def memory(handle: Any, kind: str) -> torch.Tensor:
    if kind == "locked":
        return locked(handle, NBYTES)
    return shifted(NBYTES, 64 if kind == "plain" else 1)


@pytest.mark.parametrize("kind", ["locked", "plain", "odd address"])
def test_direct(direct_disk: Path, backend: str, make_handle: Any, kind: str) -> None:
    handle = make_handle(backend)
    tensor = memory(handle, kind)
    fill(tensor, DATA)
    path = direct_disk / "file"
    assert handle.sync_pwrite(tensor, str(path)) == 1
    cached, pages = cached_pages(path)
    assert moved(handle, "write") == (NBYTES, 0)
    assert cached <= pages // 100
    assert contents(path) == DATA
    drop_cache(path)
    assert cached_pages(path)[0] == 0
    tensor.zero_()
    assert handle.sync_pread(tensor, str(path)) == 1
    cached, pages = cached_pages(path)
    assert moved(handle, "read") == (NBYTES, 0)
    assert cached <= pages // 100
    assert raw(tensor) == DATA


def test_only_the_ends_are_buffered(direct_disk: Path, backend: str, make_handle: Any) -> None:
    """An odd offset costs two blocks, not the direct mode of everything between them."""
    handle = make_handle(backend)
    path = direct_disk / "file"
    tensor = locked(handle, NBYTES)
    fill(tensor, DATA)
    assert handle.sync_pwrite(tensor, str(path), 1000) == 1
    past, through = moved(handle, "write")
    cached, _ = cached_pages(path)
    assert past + through == NBYTES
    assert 0 < through <= 2 * 65536
    assert 0 < cached * 4096 <= 4 * 65536
    assert contents(path)[1000:] == DATA


def test_small_files_say_that_they_are_buffered(
    direct_disk: Path, backend: str, make_handle: Any
) -> None:
    handle = make_handle(backend)
    path = direct_disk / "file"
    tensor = torch.arange(25, dtype=torch.float32)
    assert handle.sync_pwrite(tensor, str(path)) == 1
    assert moved(handle, "write") == (0, 100)
    assert cached_pages(path) == (1, 1)


def test_memory_file_systems_say_that_they_are_buffered(
    tmpfs: Path, backend: str, make_handle: Any
) -> None:
    handle = make_handle(backend)
    tensor = locked(handle, 1 << 20)
    fill(tensor, DATA[: 1 << 20])
    assert handle.sync_pwrite(tensor, str(tmpfs / "file")) == 1
    assert handle.sync_pread(tensor, str(tmpfs / "file")) == 1
    assert raw(tensor) == DATA[: 1 << 20]
    stats = handle.stats()
    assert stats["bytes"]["write"]["staged"] == stats["bytes"]["read"]["staged"] == 0
    assert stats["bytes"]["write"]["direct"] == stats["bytes"]["read"]["direct"] == 0
