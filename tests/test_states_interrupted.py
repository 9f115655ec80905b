"""What a signal handler does, or stops, in the middle of a move loses no state and no signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pinned_manager import PinError
from pinned_manager.states import host, offload_states, release, reload_states
from pinned_manager.states.interrupts import deferred_signals
from pinned_manager.states.owners import Owner
from support.states import picture, tensors_of

COUNT = 4


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A test may set handlers of these."""
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def training() -> torch.optim.SGD:
    """Parameters and gradients, which move in this order."""
    parameters = [torch.nn.Parameter(torch.full((5000,), float(n))) for n in range(COUNT)]
    for parameter in parameters:
        parameter.grad = parameter.detach() + 0.5
    return torch.optim.SGD(parameters)


@pytest.mark.parametrize("fails", [False, True])
def test_a_gradient_that_a_handler_drops_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    optimizer = training()
    parameters = optimizer.param_groups[0]["params"]
    allocated, allocate = 0, host.host_octets

    def drop(number: int, frame: Any) -> None:
        parameters[0].grad = None

    def allocate_and_signal(nbytes: int, pinned: bool) -> torch.Tensor:
        nonlocal allocated
        allocated += 1
        if allocated == 1:
            signal.raise_signal(signal.SIGUSR1)
        if fails and allocated == COUNT + 2:  # in the second of the gradients that are left
            raise PinError("no more")
        return allocate(nbytes, pinned)

    signal.signal(signal.SIGUSR1, drop)
    kept = {name: t for name, t in tensors_of(optimizer).items() if name != "gradient 0"}
    before = picture(kept)
    with monkeypatch.context() as patch:
        patch.setattr(host, "host_octets", allocate_and_signal)
        if fails:
            with pytest.raises(PinError):
                offload_states(optimizer)
            assert picture(kept) == before
        else:
            offload_states(optimizer)
            assert all(seen.pinned for seen in picture(kept).values())
    assert parameters[0].grad is None
    reload_states(optimizer)
    assert picture(kept) == before


@pytest.mark.parametrize("then", [release, reload_states])
def test_a_move_whose_end_was_interrupted(monkeypatch: pytest.MonkeyPatch, then: Any) -> None:
    """What has come home stays there; release() is about what has not."""
    optimizer = training()
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    offload_states(optimizer)

    forget, calls = Owner.forget, 0

    def interrupted(owner: Owner) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # the one at the end
            raise KeyboardInterrupt
        forget(owner)

    with monkeypatch.context() as patch:
        patch.setattr(Owner, "forget", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reload_states(optimizer)
    assert picture(tensors) == before
    then(optimizer)
    assert picture(tensors) == before


def test_a_handler_that_raises_keeps_no_other_from_being_called() -> None:
    called: list[int] = []

    def note(number: int, frame: Any) -> None:
        called.append(number)
        raise LookupError(str(number))

    def wait_and_look() -> None:
        with deferred_signals():
            for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
                signal.raise_signal(number)
            assert called == []

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, note)
    with pytest.raises(LookupError, match=str(int(signal.SIGUSR1))) as raised:
        wait_and_look()
    assert called == [signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1]
    assert isinstance(raised.value.__context__, LookupError)
    assert signal.getsignal(signal.SIGUSR1) is note
