"""A pin beyond the budget is an error that lists the owners, and locks nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import _deepnvme
import aio
from pinned_manager import (
    PinError,
    get_budget,
    is_pinned,
    pin_empty,
    pin_memory,
    pinned_memory_stats,
    pinned_memory_tag,
    set_budget,
    unpin_memory,
)
from support.child import child_answer
from support.counters import status_kb
from support.pinning import VARIABLE

MIB = 1 << 20


@pytest.fixture(autouse=True)
def in_use(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Native; what others have pinned; no budget afterwards."""
    monkeypatch.setenv(VARIABLE, "native")
    before = get_budget()
    yield pinned_memory_stats()["by_backend"]["native"]["live"]
    set_budget(before)


def test_owners_are_listed(in_use: int) -> None:
    set_budget(in_use + 4 * MIB)
    with pinned_memory_tag("optimizer"):
        moments = pin_empty(2 * MIB, dtype=torch.uint8)
    gradients = aio.pin_handle().new_cpu_locked_tensor(MIB, torch.empty(0, dtype=torch.uint8))
    before, locked = pinned_memory_stats(), status_kb("VmLck")
    with pytest.raises(PinError) as caught:
        pin_memory(torch.ones(MIB, dtype=torch.int16))
    error = caught.value
    said = str(error)
    assert (error.nbytes, error.locked, error.limit) == (
        2 * MIB,
        in_use + 3 * MIB,
        in_use + 4 * MIB,
    )
    for part in (error.nbytes, error.limit, "DEEPNVME_PIN_BUDGET"):
        assert str(part) in said
    for owner, nbytes in (("optimizer", 2 * MIB), ("pin_handle", MIB)):
        assert owner in said
        assert str(nbytes) in said
    assert said.index("optimizer") < said.index("pin_handle")  # who has most comes first
    assert pinned_memory_stats() == before
    assert status_kb("VmLck") == locked
    assert is_pinned(moments)
    assert is_pinned(gradients)


@pytest.mark.parametrize("let_go", ["unpin", "drop"])
def test_what_is_given_back_can_be_pinned_again(in_use: int, let_go: str) -> None:
    set_budget(in_use + MIB)
    for _ in range(5):
        tensor = pin_empty(MIB, dtype=torch.uint8)
        with pytest.raises(PinError):
            pin_empty(1)
        if let_go == "unpin":
            assert unpin_memory(tensor) is True
        del tensor
    set_budget(None)
    assert is_pinned(pin_empty(2 * MIB))


def test_what_is_pinned_already_needs_no_budget(in_use: int) -> None:
    tensor = pin_empty(MIB)
    set_budget(0)
    assert pin_memory(tensor) is tensor
    assert is_pinned(tensor)
    assert pin_empty(0).numel() == 0


@pytest.mark.parametrize("wrong", [-1, 2.5, "many"])
def test_budgets_that_are_no_numbers(wrong: object) -> None:
    before = get_budget()
    with pytest.raises((TypeError, ValueError)):
        set_budget(wrong)  # type: ignore[arg-type]
    assert get_budget() == before


FROM_THE_VARIABLE = """
import json, os, sys, torch
import pinned_manager as pm
os.environ["DS_PIN_MEMORY_BACKEND"] = "native"
def attempt(nbytes):
    try:
        return bool(pm.pin_empty(nbytes, dtype=torch.uint8).numel())
    except (pm.PinError, ValueError) as error:
        return type(error).__name__ + ": " + str(error)
print(json.dumps([attempt(1 << 20), attempt((1 << 20) + 1)]))
"""


@pytest.mark.parametrize("value", [str(MIB), "a lot"])
def test_from_the_variable(value: str) -> None:
    fits, beyond = child_answer(FROM_THE_VARIABLE, environment={"DEEPNVME_PIN_BUDGET": value})
    if value == str(MIB):
        assert fits is True
        assert beyond.startswith("PinError")
    else:
        assert fits == beyond
        assert fits.startswith("ValueError: DEEPNVME_PIN_BUDGET is 'a lot'")


def test_budgets_are_seen_natively(in_use: int) -> None:
    set_budget(in_use + MIB)
    assert get_budget() == _deepnvme.pin.get_budget() == in_use + MIB
