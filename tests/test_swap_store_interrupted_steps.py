"""KeyboardInterrupt inside a step of an operation, where Ctrl-C never raises it, but another thread
can (PyThreadState_SetAsyncExc): the operation has failed, and the store goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from aio.swap import SwapError, SwapStore
from support.counters import until
from support.held_transfer import held_transfer


class Interruption(BaseException):
    """As KeyboardInterrupt, which would end all tests where one of these fails."""


OLD = [torch.ones(300_001)]


@pytest.fixture
def store(disk: Path, make_handle: Callable[..., Any]) -> Iterator[SwapStore]:
    made = SwapStore(disk, make_handle())
    made.put("x", OLD).result()
    yield made
    try:
        made.close()
    except Interruption:  # which pytest would not take from a fixture
        pytest.fail("an operation had not ended")
    assert list(disk.iterdir()) == []


def interrupted(handle: Any, items: Any) -> None:
    raise Interruption


@pytest.mark.parametrize("in_place", [False, True])
def test_places_that_a_lost_transfer_may_write_to_stay_taken(
    store: SwapStore, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    handle = store._core._handle
    room = store.stats()["allocated"]
    body_and_chunk = [torch.zeros(300_001)]
    with held_transfer(handle, "submit_pwrite_many"):  # of the body
        with monkeypatch.context() as patch:
            patch.setattr(type(handle), "submit_pwrite_many", interrupted)
            with pytest.raises(Interruption):
                store.put("x", body_and_chunk, in_place=in_place)
        if in_place:
            failure = store.get("x").exception()
            assert isinstance(failure, SwapError)
            assert isinstance(failure.__cause__, Interruption)
        else:
            assert torch.equal(store.get("x").result()[0], OLD[0])
            assert store.stats()["allocated"] == 2 * room
        store.put("y", OLD).result()
        store.delete("x")
        assert store.stats()["allocated"] == 2 * room  # of y, and what was lost
    assert store.stats()["in_flight"] == 0
    assert torch.equal(store.get("y").result()[0], OLD[0])


def test_those_that_wait_for_it_go_on(store: SwapStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind one that fails in the same way. Nobody has to wait for them."""
    handle = store._core._handle
    transfers = type(handle).submit_pwrite_many
    with held_transfer(handle, "submit_pwrite_many") as transfer:
        first = store.put("x", [torch.zeros(3)])
        second = store.put("x", [torch.zeros(4)])
        reads = [store.get("x"), store.get("x")]
        third = store.put("x", [torch.full((5,), 3.0)])
        last = store.get("x")
        left = iter([interrupted])  # the second one's

        def interrupted_once(handle: Any, items: Any) -> Any:
            return next(left, transfers)(handle, items)

        monkeypatch.setattr(type(handle), "submit_pwrite_many", interrupted_once)
        with pytest.raises(Interruption):
            transfer.set_result(12)
    assert first.result() == 12
    for failed in (second, *reads):
        assert failed.done()
        with pytest.raises(Interruption):
            failed.result()
    until(lambda: third.done() and last.done(), "both have gone on")
    assert third.result() == 20
    assert last.result()[0].tolist() == [3.0] * 5
