"""DS_PIN_MEMORY_BACKEND chooses who pins, at each call; a tensor keeps to its backend (E-14)."""

from __future__ import annotations

import pytest
import torch

import aio
from pinned_manager import (
    get_native_pinned_memory,
    is_pinned,
    pin_empty,
    pin_empty_like,
    pin_memory,
    unpin_memory,
)
from support.child import child_answer, with_low_memlock
from support.pinning import VARIABLE

PINS = {
    "pin_memory": lambda: pin_memory(torch.ones(100)),
    "pin_empty": lambda: pin_empty(100),
    "pin_empty_like": lambda: pin_empty_like(torch.ones(100)),
}


@pytest.mark.parametrize("name", PINS)
@pytest.mark.parametrize("value", ["native", " Native ", "NATIVE"])
def test_native(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert is_pinned(PINS[name]()) is True


@pytest.mark.parametrize("name", PINS)
@pytest.mark.parametrize("value", [None, "", "torch", "Torch"])
def test_torch_is_the_default(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    """Which pins nothing here: there is no accelerator."""
    if torch.cuda.is_available():
        pytest.skip("the torch backend pins memory where there is an accelerator")
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    assert is_pinned(PINS[name]()) is False


@pytest.mark.parametrize("name", PINS)
@pytest.mark.parametrize("value", ["cuda", "mlock", "native,torch", "1"])
def test_anything_else_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ValueError, match="'torch' or 'native'") as caught:
        PINS[name]()
    assert repr(value) in str(caught.value)


def test_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for value in ("native", "torch", "native"):
        monkeypatch.setenv(VARIABLE, value)
        found.append(pin_memory(torch.ones(10)))
    monkeypatch.setenv(VARIABLE, "torch")
    assert [is_pinned(tensor) for tensor in found] == [True, False, True]


@pytest.mark.parametrize("later", ["torch", "native", "neither"])
def test_a_tensor_remembers_its_backend(monkeypatch: pytest.MonkeyPatch, later: str) -> None:
    """What native pinned is found and unpinned whatever the variable says by then."""
    monkeypatch.setenv(VARIABLE, "native")
    tensor, by_alias = pin_memory(torch.ones(10)), pin_memory(torch.ones(10))
    monkeypatch.setenv(VARIABLE, later)
    assert is_pinned(tensor) is True
    assert unpin_memory(tensor) is True
    assert is_pinned(tensor) is False
    assert unpin_memory(tensor) is False
    assert unpin_memory(by_alias[3:]) is False
    assert is_pinned(by_alias) is True
    assert unpin_memory(by_alias.detach()) is True
    assert is_pinned(by_alias) is False


def test_what_nobody_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As DeepSpeed: None from torch, which has nothing to do, and False from native."""
    monkeypatch.setenv(VARIABLE, "torch")
    assert unpin_memory(torch.ones(10)) is None
    monkeypatch.setenv(VARIABLE, "native")
    assert unpin_memory(torch.ones(10)) is False
    with pytest.raises(TypeError, match="ndarray"):
        unpin_memory(torch.ones(10).numpy())  # type: ignore[arg-type]


def test_one_manager_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "native")
    manager = get_native_pinned_memory()
    assert get_native_pinned_memory() is manager
    tensor = pin_memory(torch.ones(10))
    assert manager.is_pinned(tensor) is True
    assert manager.unpin(tensor) is True
    assert is_pinned(tensor) is False


def test_tensors_of_handles_are_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One registry, one question: who pinned it does not matter (E-01)."""
    monkeypatch.setenv(VARIABLE, "native")
    pins = aio.pin_handle()
    with aio.aio_handle() as handle:
        for maker in (pins, handle):
            tensor = maker.new_cpu_locked_tensor(1000, torch.empty(0))
            assert is_pinned(tensor[10:20]) is True
            assert pin_memory(tensor) is tensor
            assert unpin_memory(tensor) is True
            assert maker.is_pinned(tensor) is False
        mine = pin_memory(torch.ones(1000))
        assert handle.is_pinned(mine[::3]) is True
        assert pins.is_pinned(mine.numpy()) is True
        assert handle.free_cpu_locked_tensor(mine) is True
    assert is_pinned(mine) is False
    assert unpin_memory(mine) is False


WITHOUT_MEMLOCK = """
import json, os, torch
import pinned_manager as pm
def attempt(call):
    try:
        return str(call())
    except Exception as error:
        return type(error).__name__, str(error)
os.environ["DS_PIN_MEMORY_BACKEND"] = "native"
x = torch.ones(10)
calls = [lambda: pm.pin_memory(x), lambda: pm.pin_empty(3), lambda: pm.pin_empty_like(x),
         pm.get_native_pinned_memory, pm.NativePinnedMemory]
answer = {"refused": [attempt(call) for call in calls], "lookup": pm.is_pinned(x)}
os.environ["DS_PIN_MEMORY_BACKEND"] = "torch"
answer["torch"] = pm.pin_memory(x) is x
print(json.dumps(answer))
"""


def test_native_that_cannot_be_had() -> None:
    """It says why, at once; it never becomes the other backend."""
    answer = child_answer(WITHOUT_MEMLOCK, wrapper=with_low_memlock(0))
    for kind, message in answer["refused"]:
        assert kind == "RuntimeError"
        for part in ("native", "RLIMIT_MEMLOCK is 0", "ulimit -l", "DS_PIN_MEMORY_BACKEND=torch"):
            assert part in message
    assert answer["lookup"] is False
    assert answer["torch"] is True
