"""The torch backend where torch can pin: make_copy and match_shape hold, and it counts (E-15)."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from pinned_manager import (
    get_accelerator,
    is_pinned,
    pin_empty,
    pin_empty_like,
    pin_memory,
    pinned_memory_stats,
    pinned_memory_tag,
    unpin_memory,
)
from support.pinning import VARIABLE, PinningAccelerator, pinning_accelerator


@pytest.fixture(autouse=True)
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[PinningAccelerator]:
    monkeypatch.setenv(VARIABLE, "torch")
    with pinning_accelerator(monkeypatch) as accelerator:
        yield accelerator


@pytest.mark.parametrize("match_shape", [True, False])
@pytest.mark.parametrize("make_copy", [True, False])
def test_one_buffer(accelerator: PinningAccelerator, make_copy: bool, match_shape: bool) -> None:
    tensor = torch.arange(600.0).reshape(20, 30).t()
    pinned = get_accelerator().pin_memory(tensor, make_copy, match_shape)
    assert is_pinned(pinned) is True
    assert accelerator.copies == (make_copy and match_shape)  # the flat copy is made in place
    assert [nbytes for _, nbytes in accelerator.pinned] == [2400]
    assert pinned.shape == ((30, 20) if match_shape else (600,))
    if make_copy:
        assert torch.equal(pinned.reshape(-1), tensor.reshape(-1))
    assert pin_memory(pinned) is pinned
    assert unpin_memory(pinned) is None
    assert is_pinned(pinned) is True


def test_empty(accelerator: PinningAccelerator) -> None:
    assert is_pinned(pin_empty(3, 4))
    assert pin_empty_like(torch.ones(3, 4).t()).stride() == (1, 4)
    assert [nbytes for _, nbytes in accelerator.pinned] == [48, 48]
    before = pinned_memory_stats()
    assert not is_pinned(pin_empty(0, 4))
    assert pin_memory(torch.empty(0, 4)).shape == (0, 4)
    assert pinned_memory_stats() == before  # nothing is pinned for what has no elements


def test_counted_while_the_storage_lives() -> None:
    before = pinned_memory_stats()
    with pinned_memory_tag("optimizer"):
        tensors = [pin_memory(torch.ones(1000)), pin_empty(500), pin_memory(torch.ones(1), False)]
        assert unpin_memory(pin_memory(tensors[0])) is None
    now = pinned_memory_stats()
    torchs = now["by_backend"]["torch"]
    assert torchs["live"] - before["by_backend"]["torch"]["live"] == 6004
    assert torchs["calls"] - before["by_backend"]["torch"]["calls"] == 3
    assert now["live"] - before["live"] == 6004
    assert now["by_backend"]["native"] == before["by_backend"]["native"]
    assert now["by_tag"]["optimizer"] == 6004
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.data = tensors[0]
    view = tensors[1][10:].numpy()
    tensors.clear()
    gc.collect()
    assert pinned_memory_stats()["by_tag"]["optimizer"] == 6000
    del view
    parameter.data = torch.zeros(1)
    gc.collect()
    after = pinned_memory_stats()
    assert after["live"] == before["live"]
    assert after["by_tag"] == before["by_tag"]
    assert after["by_backend"]["torch"]["peak"] >= 6004


def test_each_keeps_to_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    by_torch = pin_memory(torch.ones(10))
    monkeypatch.setenv(VARIABLE, "native")
    native = pin_memory(torch.ones(10))
    assert pin_memory(by_torch) is by_torch
    assert is_pinned(by_torch)
    assert unpin_memory(by_torch) is None
    assert unpin_memory(torch.ones(10)) is False
    monkeypatch.setenv(VARIABLE, "torch")
    assert pin_memory(native) is native
    assert unpin_memory(native) is True
    assert unpin_memory(native) is False
    assert is_pinned(by_torch)
