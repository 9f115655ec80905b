"""wait() with nothing pending returns 0: fresh, repeated, after sync calls and futures (C-01)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def test_fresh_handle(backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    assert handle.wait() == 0
    assert handle.wait() == 0


def test_sync_calls_are_not_counted(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    assert handle.sync_pwrite(torch.ones(5000), path) == 1
    assert handle.wait() == 0
    assert handle.pwrite_many([(torch.ones(10), path), (torch.ones(10), path, 400)]) == 2
    assert handle.wait() == 0


def test_futures_are_not_counted(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    future = handle.submit_pwrite(torch.ones(5000), directory / "file")
    assert handle.wait() == 0
    assert future.result() == 20_000
    assert handle.wait() == 0


def test_a_sync_call_counts_only_itself(directory: Path, backend: str, make_handle: Any) -> None:
    """A sync call among pending ones waits for its own operation; wait() still counts the rest."""
    handle = make_handle(backend)
    for index in range(3):
        assert handle.async_pwrite(torch.full((1000,), index), directory / f"{index}") == 0
    assert handle.sync_pwrite(torch.ones(1), directory / "other") == 1
    assert handle.pread(torch.empty(1), directory / "other", False, False) == 1
    assert handle.wait() == 3
    assert handle.wait() == 0
