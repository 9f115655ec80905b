"""is_pinned and free of redirected, fake and meta tensors: an answer or TypeError (E-05, E-12)."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import _deepnvme
import aio
from support.buffers import locked, raw


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(1000)


UNUSUAL: dict[str, Callable[[], torch.Tensor]] = {
    "meta": lambda: torch.empty(1000, device="meta"),
    "fake": fake,
    "sparse": lambda: torch.eye(10).to_sparse(),
    "without elements": lambda: torch.empty(0),
    "requires grad": lambda: torch.empty(10, requires_grad=True),
}

REFUSED: tuple[str, ...] = ()


@pytest.mark.parametrize("kind", UNUSUAL)
def test_is_pinned_of(kind: str) -> None:
    pins = aio.pin_handle()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = UNUSUAL[kind]()
        for call in (pins.is_pinned, pins.free_cpu_locked_tensor):
            if kind in REFUSED:
                with pytest.raises(TypeError):
                    call(tensor)
            else:
                assert call(tensor) is False


def test_pinned_data_replaced() -> None:
    """`p.data = other`: p is not pinned any more, and its region is released once, if no alias."""
    pins = aio.pin_handle()
    before = _deepnvme.pin.stats()["in_use"]
    tensor = locked(pins, 5000)
    alias = tensor.detach()
    tensor.data = torch.zeros(8, dtype=torch.uint8)
    assert not pins.is_pinned(tensor)
    assert not pins.free_cpu_locked_tensor(tensor)
    assert pins.is_pinned(alias)
    assert pins.free_cpu_locked_tensor(alias)
    assert not pins.free_cpu_locked_tensor(alias)
    del alias
    assert _deepnvme.pin.stats()["in_use"] == before


def test_data_of_a_pinned_tensor_taken_over() -> None:
    """`q.data = p.data`: q is the same region; freeing it frees p, once, and both stay readable."""
    pins = aio.pin_handle()
    tensor, other = locked(pins, 5000).fill_(7), locked(pins, 5000)
    taker = torch.zeros(3, dtype=torch.uint8)
    taker.data = tensor.data
    assert pins.is_pinned(taker)
    assert pins.free_cpu_locked_tensor(taker)
    assert not pins.free_cpu_locked_tensor(tensor)
    assert pins.is_pinned(other)
    assert raw(taker) == raw(tensor) == bytes([7]) * 5000
