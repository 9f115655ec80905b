"""Ctrl-C in a call of a store: what it has registered is carried out, nothing lost (C-06)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from aio.swap import SwapStore
from support.counters import until

NUMEL = 5000
ROOM = 5 * 4096  # bytes: of such a group

CALLS: dict[str, Callable[[SwapStore], Any]] = {
    "put": lambda store: store.put("x", group(1)),
    "put in place": lambda store: store.put("x", group(1), in_place=True),
    "get": lambda store: store.get("x"),
    "prefetch": lambda store: store.prefetch("x"),
    "flush": lambda store: store.flush(),
}
REGISTER = {
    "put": "add_put",
    "put in place": "add_overwrite",
    "get": "add_reader",
    "prefetch": "add_reader",
}


def group(value: int) -> list[torch.Tensor]:
    return [torch.full((NUMEL,), float(value))]


def value_of(store: SwapStore, name: str) -> list[float]:
    values: list[float] = store.get(name).result()[0].unique().tolist()
    return values


class Interrupting(set[Any]):
    """Ctrl-C comes as the first one is in it."""

    interrupted = False

    def add(self, element: Any) -> None:
        super().add(element)
        if not self.interrupted:
            self.interrupted = True
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def interrupts_are_heard() -> Iterator[None]:
    """A test that runs in the background of a shell finds the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def store(disk: Path, make_handle: Callable[..., Any]) -> Iterator[SwapStore]:
    with SwapStore(disk, make_handle()) as made:
        made.put("x", group(0)).result()
        yield made
    assert list(disk.iterdir()) == []


def check(store: SwapStore, call: str) -> None:
    """Nobody has to wait for it; what others put takes no room that it writes to."""
    until(lambda: store.stats()["in_flight"] == 0, "everything has ended")
    store.put("y", group(2)).result()
    assert value_of(store, "x") == [1.0 if call.startswith("put") else 0.0]
    assert value_of(store, "y") == [2.0]
    store.delete("x")
    assert store.stats()["allocated"] == ROOM


@pytest.mark.parametrize("call", CALLS)
def test_as_the_operation_is_made(store: SwapStore, call: str) -> None:
    store._core._records.operations = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        CALLS[call](store)
    check(store, call)


@pytest.mark.parametrize("call", REGISTER)
def test_as_it_is_registered(store: SwapStore, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    records = store._core._records
    register = getattr(records, REGISTER[call])

    def interrupted(*arguments: Any) -> Any:
        after = register(*arguments)
        signal.raise_signal(signal.SIGINT)
        return after

    with monkeypatch.context() as patch:
        patch.setattr(records, REGISTER[call], interrupted)
        with pytest.raises(KeyboardInterrupt):
            CALLS[call](store)
    check(store, call)
