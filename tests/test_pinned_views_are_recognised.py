"""Any view of pinned memory is pinned, for every handle, and goes without a copy (E-01)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import _deepnvme
import aio
from support.buffers import locked, pattern, raw
from support.counters import status_kb

NBYTES = 1 << 20

VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda t: t,
    "slice": lambda t: t[1000:2000],
    "every second": lambda t: t[::2],
    "int64": lambda t: t.view(torch.int64),
    "matrix": lambda t: t.view(1024, 1024),
    "transposed": lambda t: t.view(1024, 1024).t(),
    "0-dim": lambda t: t[77],
    "expanded": lambda t: t[77:78].expand(5),
    "last byte": lambda t: t[-1:],
    "numpy": lambda t: t.numpy()[5:99],
    "numpy backwards": lambda t: t.numpy()[::-3],
    "memoryview": lambda t: t.numpy().data[7:],
    "parameter": lambda t: torch.nn.Parameter(t.view(torch.float32)),
    "detached": lambda t: t.detach(),
    "from dlpack": lambda t: torch.utils.dlpack.from_dlpack(t),
}


@pytest.mark.parametrize("nbytes", [NBYTES, 1 << 18], ids=["large", "small"])
@pytest.mark.parametrize("view", VIEWS)
def test_by_every_door(view: str, nbytes: int, make_handle: Any) -> None:
    maker, other = aio.pin_handle(), make_handle()
    tensor = locked(maker, nbytes)
    if nbytes < NBYTES and view in ("matrix", "transposed"):
        seen = tensor.view(512, 512)
        seen = seen.t() if view == "transposed" else seen
    else:
        seen = VIEWS[view](tensor)
    for door in (maker, other, aio.pin_handle(), _deepnvme.pin):
        assert door.is_pinned(seen) is True
    assert maker.free_cpu_locked_tensor(tensor) is True
    for door in (maker, other, aio.pin_handle(), _deepnvme.pin):
        assert door.is_pinned(seen) is False


def test_plain_memory_is_not(make_handle: Any) -> None:
    handle = make_handle()
    for buffer in (torch.ones(10), torch.ones(1 << 20), bytearray(100), b"abc", torch.tensor(1)):
        assert handle.is_pinned(buffer) is False
        assert aio.pin_handle().is_pinned(buffer) is False


def test_no_copy_through_another_handle(disk: Path, backend: str, make_handle: Any) -> None:
    """Aligned slices of pinned memory are the target of the transfer itself."""
    maker, reader = make_handle(backend), make_handle(backend)
    (disk / "file").write_bytes(pattern(NBYTES))
    tensor = locked(maker, NBYTES)
    before = status_kb("VmLck")
    for start in range(0, NBYTES, NBYTES // 4):
        reader.sync_pread(
            tensor[start : start + NBYTES // 4].view(torch.int16), disk / "file", start
        )
    assert raw(tensor) == pattern(NBYTES)
    assert status_kb("VmLck") == before
    moved = reader.stats()["bytes"]["read"]
    assert moved["staged"] == 0
    assert sum(moved.values()) == NBYTES
