"""Pinned bytes are rounded to a page and to nothing larger, and shaped as asked (E-09)."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import _deepnvme
import aio
from support.buffers import PAGE, locked
from support.counters import status_kb
from support.layouts import DTYPES

MIB = 1 << 20


def pages(nbytes: int) -> int:
    """Bytes of the pages that hold `nbytes`."""
    return -(-nbytes // PAGE) * PAGE


@pytest.mark.parametrize("nbytes", [int(129.5 * MIB), 65 * MIB + 1, 3 * MIB - 1, 300_001])
def test_locked_pages(nbytes: int) -> None:
    """129.5 MiB cost 129.5 MiB: a power of two would be 256."""
    pins = aio.pin_handle()
    gc.collect()
    _deepnvme.pin.empty_cache()
    before, in_use = status_kb("VmLck"), _deepnvme.pin.stats()["in_use"]
    tensor = locked(pins, nbytes)
    assert status_kb("VmLck") - before == pages(nbytes) // 1024
    assert _deepnvme.pin.stats()["in_use"] - in_use == pages(nbytes)
    assert pins.free_cpu_locked_tensor(tensor) is True
    del tensor
    _deepnvme.pin.empty_cache()
    assert status_kb("VmLck") == before


@given(nbytes=st.one_of(st.integers(1, 9000), st.integers(1, 3 * MIB)))
def test_any_size(nbytes: int) -> None:
    pins = aio.pin_handle()
    before = _deepnvme.pin.stats()
    tensor = locked(pins, nbytes)
    during = _deepnvme.pin.stats()
    assert during["in_use"] - before["in_use"] == pages(nbytes)
    assert during["regions"] - before["regions"] == 1
    assert during["calls"] - before["calls"] == 1
    assert tensor.data_ptr() % PAGE == 0
    assert tensor.untyped_storage().nbytes() == nbytes
    tensor.fill_(3)
    del tensor
    after = _deepnvme.pin.stats()
    assert (after["in_use"], after["regions"]) == (before["in_use"], before["regions"])


@given(dtype=st.sampled_from(DTYPES), count=st.integers(1, 50_000))
def test_a_tensor_of_the_examples_dtype(dtype: torch.dtype, count: int) -> None:
    with aio.aio_handle() as handle:
        for maker in (handle, aio.pin_handle()):
            tensor = maker.new_cpu_locked_tensor(count, torch.empty(2, 3, dtype=dtype))
            assert tensor.shape == (count,)
            assert tensor.dtype == dtype
            assert tensor.device.type == "cpu"
            assert tensor.is_contiguous()
            assert not tensor.requires_grad
            assert maker.is_pinned(tensor)
            tensor.view(torch.uint8).fill_(7)
            assert bool((tensor.view(torch.uint8) == 7).all())


def test_no_elements(make_handle: Any) -> None:
    """Zero elements lock nothing, and are not pinned."""
    before = _deepnvme.pin.stats()
    for maker in (make_handle(), aio.pin_handle()):
        tensor = maker.new_cpu_locked_tensor(0, torch.empty(1, dtype=torch.bfloat16))
        assert tensor.shape == (0,)
        assert tensor.dtype == torch.bfloat16
        assert maker.is_pinned(tensor) is False
        assert maker.free_cpu_locked_tensor(tensor) is False
    assert _deepnvme.pin.stats()["in_use"] == before["in_use"]


@pytest.mark.parametrize("count", [-1, 2**62, 2**64])
def test_counts_that_cannot_be(make_handle: Any, count: int) -> None:
    before = _deepnvme.pin.stats()
    for maker in (make_handle(), aio.pin_handle()):
        with pytest.raises((ValueError, OverflowError, MemoryError)):
            maker.new_cpu_locked_tensor(count, torch.empty(1))
    assert _deepnvme.pin.stats()["in_use"] == before["in_use"]
