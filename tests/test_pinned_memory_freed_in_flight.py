"""Freeing pinned memory that a request uses takes effect at once, and hurts no byte (D-07)."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

import _deepnvme
from support.buffers import fill, locked, pattern, raw
from support.counters import status_kb, until

LARGE = 4 << 20
SMALL = 20_000


@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_writes(directory: Path, backend: str, make_handle: Any, nbytes: int, keep: bool) -> None:
    handle = make_handle(backend, queue_depth=1, block_size=65536)
    tensors = []
    for index in range(3):
        tensor = locked(handle, nbytes)
        fill(tensor, pattern(nbytes, index))
        handle.async_pwrite(tensor, directory / f"{index}")
        assert handle.free_cpu_locked_tensor(tensor) is True
        assert not handle.is_pinned(tensor)
        assert handle.free_cpu_locked_tensor(tensor) is False
        if keep:
            tensors.append(tensor)
        del tensor
        locked(handle, nbytes).fill_(255)
    assert handle.wait() == 3
    for index in range(3):
        assert (directory / f"{index}").read_bytes() == pattern(nbytes, index)
    for index, tensor in enumerate(tensors):
        assert raw(tensor) == pattern(nbytes, index)


@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_reads(directory: Path, backend: str, make_handle: Any, nbytes: int) -> None:
    handle = make_handle(backend, queue_depth=1, block_size=65536)
    (directory / "file").write_bytes(pattern(nbytes))
    kept = locked(handle, nbytes)
    handle.async_pread(kept, directory / "file")
    assert handle.free_cpu_locked_tensor(kept) is True
    others = [locked(handle, nbytes).fill_(9) for _ in range(3)]
    for _ in range(3):
        dropped = locked(handle, nbytes)
        handle.async_pread(dropped, directory / "file")
        assert handle.free_cpu_locked_tensor(dropped) is True
        del dropped
        others.append(locked(handle, nbytes).fill_(9))
    assert handle.wait() == 4
    assert raw(kept) == pattern(nbytes)
    for tensor in others:
        assert bool((tensor == 9).all())


def test_pages_are_unlocked_after_the_request(
    directory: Path, backend: str, make_handle: Any
) -> None:
    handle = make_handle(backend)
    handle.sync_pwrite(torch.ones(10), directory / "file")
    gc.collect()
    _deepnvme.pin.empty_cache()
    before = status_kb("VmLck")
    in_use = _deepnvme.pin.stats()["in_use"]
    tensor = locked(handle, LARGE).fill_(3)
    assert status_kb("VmLck") >= before + LARGE // 1024
    handle.async_pwrite(tensor, directory / "file")
    handle.free_cpu_locked_tensor(tensor)
    assert _deepnvme.pin.stats()["in_use"] == in_use
    assert handle.wait() == 1
    until(lambda: status_kb("VmLck") == before, "the pages of a freed region are unlocked")
    assert raw(tensor) == bytes([3]) * LARGE
    assert (directory / "file").read_bytes() == bytes([3]) * LARGE
