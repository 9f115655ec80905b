"""Dropped pools, handles that failed and unpinned I/O leave no page locked (E-03)."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

import _deepnvme
import aio
import support.torch_threads  # noqa: F401
from support.buffers import locked, pattern, raw
from support.child import child_answer
from support.counters import counters

NBYTES = 300_000


class SwapBuffers:
    """What a swapper does: a handle, a pool, and sometimes an error half way."""

    def __init__(self, fail: bool) -> None:
        self.handle = aio.aio_handle(queue_depth=4)
        self.pool = [locked(self.handle, NBYTES) for _ in range(3)]
        self.self_reference = self
        if fail:
            raise LookupError
        self.more = [locked(aio.pin_handle(), 5000) for _ in range(3)]


def test_a_pool_made_and_dropped() -> None:
    with counters():
        before = _deepnvme.pin.stats()["in_use"]
        for index in range(100):
            if index % 2:
                with pytest.raises(LookupError):
                    SwapBuffers(fail=True)
            else:
                SwapBuffers(fail=False)
            if index % 10 == 9:
                gc.collect()
        gc.collect()
        assert _deepnvme.pin.stats()["in_use"] == before


def test_a_thousand_unpinned_reads(directory: Path, backend: str) -> None:
    path = directory / "file"
    data = pattern(NBYTES)
    path.write_bytes(data)
    with counters():
        before = _deepnvme.pin.stats()
        with aio.aio_handle(backend=backend, block_size=65536) as handle:
            room = torch.zeros(NBYTES + 1, dtype=torch.uint8)
            handle.sync_pread(room[1:], path)
            during = _deepnvme.pin.stats()
            for index in range(1000):
                size = 1 + 37 * index % 20_000
                handle.sync_pread(room[1 : 1 + size], path, index)
            assert raw(room[1 : 1 + size]) == data[999 : 999 + size]
            after = _deepnvme.pin.stats()
            assert after["in_use"] == during["in_use"]
            assert after["regions"] == during["regions"]
        gc.collect()
        assert _deepnvme.pin.stats()["in_use"] == before["in_use"]


def test_the_pool_has_a_limit(make_handle: Any) -> None:
    limit = _deepnvme.pin.get_cache_limit()
    _deepnvme.pin.empty_cache()
    try:
        _deepnvme.pin.set_cache_limit(8 << 20)
        pins = aio.pin_handle()
        tensors = [locked(pins, 3 << 20) for _ in range(6)]
        tensors.clear()
        assert _deepnvme.pin.stats()["cached"] <= 8 << 20
        _deepnvme.pin.set_cache_limit(0)
        assert _deepnvme.pin.stats()["cached"] == 0
        del pins
    finally:
        _deepnvme.pin.set_cache_limit(limit)


def test_a_freed_region_is_used_again() -> None:
    pins = aio.pin_handle()
    _deepnvme.pin.empty_cache()
    first = locked(pins, 3 << 20)
    address = first.data_ptr()
    locked_before = _deepnvme.pin.stats()
    del first
    again = locked(pins, 3 << 20)
    assert again.data_ptr() == address
    after = _deepnvme.pin.stats()
    assert after["in_use"] + after["cached"] == locked_before["in_use"] + locked_before["cached"]


LIMITED = """
import json
from _deepnvme import pin
from support.counters import status_kb
before = status_kb("VmLck")
capsules = [pin.allocate_dlpack(1 << 20, "test") for _ in range(5)]
capsules.clear()
print(json.dumps([status_kb("VmLck") - before << 10, pin.stats()["cached"], pin.get_cache_limit()]))
"""


@pytest.mark.parametrize(("value", "limit"), [("2M", 2 << 20), ("3500000", 3_500_000), ("0", 0)])
def test_limit_of_the_variable(value: str, limit: int) -> None:
    """What was dropped stays locked up to the limit, in whole mappings, also before it is asked."""
    locked, cached, said = child_answer(LIMITED, environment={"DEEPNVME_PIN_CACHE_BYTES": value})
    assert locked == cached == limit >> 20 << 20
    assert said == limit
