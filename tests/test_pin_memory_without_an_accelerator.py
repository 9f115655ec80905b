"""The torch backend without an accelerator does nothing, says so, and counts nothing (E-14)."""

from __future__ import annotations

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
    unpin_memory,
)
from support.pinning import VARIABLE, Baseline


@pytest.fixture(autouse=True)
def nothing_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if get_accelerator().name != "cpu":
        pytest.skip("this host has an accelerator, for which torch pins memory")
    monkeypatch.setenv(VARIABLE, "torch")
    before, held = pinned_memory_stats(), Baseline.now()
    yield
    assert pinned_memory_stats()["calls"] == before["calls"]
    held.check_nothing_is_left()


TENSORS = {
    "plain": lambda: torch.ones(1000),
    "transposed": lambda: torch.ones(10, 20).t(),
    "with gaps": lambda: torch.ones(10, 20)[::2, ::3],
    "leaf": lambda: torch.ones(10, requires_grad=True),
    "empty": lambda: torch.empty(0, 3),
    "0-dim": lambda: torch.tensor(3.0),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
}


@pytest.mark.parametrize("make_copy", [True, False])
@pytest.mark.parametrize("kind", TENSORS)
def test_the_tensor_itself(kind: str, make_copy: bool) -> None:
    tensor = TENSORS[kind]()
    assert pin_memory(tensor, make_copy=make_copy) is tensor
    assert is_pinned(tensor) is False
    assert unpin_memory(tensor) is None


@pytest.mark.parametrize("make_copy", [True, False])
@pytest.mark.parametrize("kind", TENSORS)
def test_flat(kind: str, make_copy: bool) -> None:
    """A view of the tensor where that can be, so that there is no second buffer."""
    tensor = TENSORS[kind]()
    flat = pin_memory(tensor, make_copy=make_copy, match_shape=False)
    assert torch.equal(flat, tensor.reshape(-1))
    assert (flat.data_ptr() == tensor.data_ptr()) is tensor.is_contiguous()


def test_empty() -> None:
    for tensor in (pin_empty(3, 4, dtype=torch.int8), pin_empty_like(torch.ones(4, 3).t())):
        assert tensor.shape == (3, 4)
        assert is_pinned(tensor) is False
    assert pin_empty_like(torch.ones(4, 3).t()).stride() == (1, 3)
