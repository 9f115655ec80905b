"""Pinning what is pinned already copies nothing and counts once (E-11)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pinned_manager import NativePinnedMemory, is_pinned, pin_memory, pinned_memory_stats
from support.buffers import raw
from support.pinning import VARIABLE

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda t: t,
    "slice": lambda t: t[3:7],
    "with gaps": lambda t: t[::2, 1::3],
    "transposed": lambda t: t.t(),
    "other dtype": lambda t: t.view(torch.uint8),
    "detached": lambda t: t.detach(),
    "parameter": lambda t: torch.nn.Parameter(t),
}


@pytest.mark.parametrize("later", ["native", "torch"])
@pytest.mark.parametrize("name", VIEWS)
def test_returned_as_it_is(monkeypatch: pytest.MonkeyPatch, name: str, later: str) -> None:
    monkeypatch.setenv(VARIABLE, "native")
    pinned = pin_memory(torch.arange(600.0).reshape(20, 30))
    view = VIEWS[name](pinned)
    monkeypatch.setenv(VARIABLE, later)
    before = pinned_memory_stats()
    assert pin_memory(view) is view
    assert pin_memory(view, make_copy=False) is view
    assert NativePinnedMemory().pin(view) is view
    assert pinned_memory_stats() == before


def test_flat_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "native")
    pinned = pin_memory(torch.arange(600.0).reshape(20, 30))
    before = pinned_memory_stats()
    flat = pin_memory(pinned, match_shape=False)
    assert flat.shape == (600,)
    assert flat.data_ptr() == pinned.data_ptr()
    assert pin_memory(flat, match_shape=False) is flat
    assert pin_memory(pinned[3:], match_shape=False).data_ptr() == pinned[3:].data_ptr()
    assert pinned_memory_stats() == before
    for pin in (pin_memory, NativePinnedMemory().pin):
        transposed = pin(pinned.t(), match_shape=False)  # its elements lie in another order
        assert is_pinned(transposed)
        assert raw(transposed) == raw(pinned.t())
        assert pin(pinned.t(), make_copy=False, match_shape=False).shape == (600,)


def test_twice_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "native")
    tensor = torch.ones(1000)
    before = pinned_memory_stats()
    twice = pin_memory(pin_memory(tensor))
    after = pinned_memory_stats()
    assert after["regions"] - before["regions"] == 1
    assert after["calls"] - before["calls"] == 1
    assert after["live"] - before["live"] == 4096
    assert is_pinned(twice)


def test_a_view_that_reaches_beyond_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partly pinned is not pinned (E-02)."""
    monkeypatch.setenv(VARIABLE, "native")
    pinned = pin_memory(torch.zeros(4096, dtype=torch.uint8))
    around = torch.as_strided(pinned, (3,), (2,), 4091)
    assert pin_memory(around) is around
    tensor = torch.zeros(100)
    tensor.data = pinned.view(torch.float32)[:100]
    assert pin_memory(tensor) is tensor
    tensor.data = torch.ones(100)
    again = pin_memory(tensor)
    assert again is not tensor
    assert torch.equal(again, torch.ones(100))
