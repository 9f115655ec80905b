"""What is reported is what is pinned: live, peak, calls, owners, and the kernel's VmLck (E-16)."""

from __future__ import annotations

import gc
import random
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import _deepnvme
import aio
from support.buffers import PAGE, locked
from support.counters import status_kb
from support.sanitizers import examples
from support.threads import in_threads

SIZES = st.one_of(st.integers(1, 3 * PAGE), st.integers(1, 600_000))


def pages(nbytes: int) -> int:
    """Bytes of the pages that hold `nbytes`."""
    return -(-nbytes // PAGE) * PAGE


class Accounts(RuleBasedStateMachine):
    """Pinned tensors, live and freed, and what the accounts must say."""

    def __init__(self) -> None:
        super().__init__()
        self.live: list[torch.Tensor] = []
        self.freed: list[torch.Tensor] = []
        self.before: Any = {}

    @initialize()
    def begin(self) -> None:
        gc.collect()
        _deepnvme.pin.empty_cache()
        self.pins = aio.pin_handle()
        self.before = _deepnvme.pin.stats()
        self.others_kb = status_kb("VmLck") - self._total_kb(self.before)
        self.in_use = self.before["in_use"]
        self.calls = self.before["calls"]
        self.peak = self.before["peak"]

    @rule(nbytes=SIZES)
    def pin(self, nbytes: int) -> None:
        self.live.append(locked(self.pins, nbytes))
        self.in_use += pages(nbytes)
        self.calls += 1
        self.peak = max(self.peak, self.in_use)

    @rule(index=st.integers(0, 100), keep=st.booleans())
    def free(self, index: int, keep: bool) -> None:
        if self.live:
            tensor = self.live.pop(index % len(self.live))
            assert self.pins.free_cpu_locked_tensor(tensor) is True
            self.in_use -= pages(tensor.nbytes)
            if keep:
                self.freed.append(tensor)

    @rule(index=st.integers(0, 100))
    def drop(self, index: int) -> None:
        if self.live:
            self.in_use -= pages(self.live.pop(index % len(self.live)).nbytes)

    @rule(index=st.integers(0, 100))
    def free_again(self, index: int) -> None:
        if self.freed:
            tensor = self.freed[index % len(self.freed)]
            assert self.pins.free_cpu_locked_tensor(tensor) is False

    @rule()
    def free_a_stranger(self) -> None:
        assert self.pins.free_cpu_locked_tensor(torch.ones(5000)) is False

    @rule()
    def fail_to_pin(self) -> None:
        with pytest.raises(MemoryError):
            locked(self.pins, 1 << 50)

    @rule()
    def pin_nothing(self) -> None:
        locked(self.pins, 0)

    @rule()
    def empty_the_pool(self) -> None:
        _deepnvme.pin.empty_cache()

    @invariant()
    def the_accounts_are_right(self) -> None:
        if not self.before:
            return
        now = _deepnvme.pin.stats()
        assert now["in_use"] == self.in_use
        assert now["regions"] == self.before["regions"] + len(self.live)
        assert now["calls"] == self.calls
        assert now["peak"] == self.peak
        assert sum(now["by_tag"].values()) == now["in_use"]
        assert status_kb("VmLck") - self.others_kb == self._total_kb(now)

    def teardown(self) -> None:
        self.live.clear()
        self.freed.clear()
        if self.before:
            _deepnvme.pin.empty_cache()
            now = _deepnvme.pin.stats()
            assert now["in_use"] == self.before["in_use"]
            assert now["by_tag"] == self.before["by_tag"]

    @staticmethod
    def _total_kb(stats: Any) -> int:
        return int(stats["in_use"] + stats["cached"]) // 1024


def test_any_sequence() -> None:
    run: Any = run_state_machine_as_test  # has no annotations
    run(
        Accounts,
        settings=settings(max_examples=examples(20), stateful_step_count=25, deadline=None),
    )


def test_eight_threads() -> None:
    """Whatever they do at once, everything is back at zero afterwards."""
    gc.collect()
    _deepnvme.pin.empty_cache()
    before, locked_kb = _deepnvme.pin.stats(), status_kb("VmLck")

    def work(number: int) -> None:
        choose = random.Random(number)
        pins = aio.pin_handle()
        mine: list[torch.Tensor] = []
        for _ in range(200):
            if not mine or choose.random() < 0.5:
                tensor = locked(pins, choose.choice([1, 4096, 5000, 300_000, 700_000]))
                tensor[0] = number
                tensor[-1] = number
                mine.append(tensor)
                continue
            tensor = mine.pop(choose.randrange(len(mine)))
            assert (int(tensor[0]), int(tensor[-1])) == (number, number)
            if choose.random() < 0.5:
                assert pins.free_cpu_locked_tensor(tensor) is True
                assert pins.free_cpu_locked_tensor(tensor) is False

    in_threads(*[partial(work, number) for number in range(8)])
    _deepnvme.pin.empty_cache()
    after = _deepnvme.pin.stats()
    assert (after["in_use"], after["regions"]) == (before["in_use"], before["regions"])
    assert after["by_tag"] == before["by_tag"]
    assert status_kb("VmLck") == locked_kb


def test_handles_and_pin_handles_are_owners(make_handle: Any) -> None:
    """Tensors made by either kind of handle are in the one account."""
    handle, pins = make_handle(), aio.pin_handle()
    before = _deepnvme.pin.stats()
    tensors = [locked(handle, 8000), locked(pins, 12_000)]
    now = _deepnvme.pin.stats()
    assert now["in_use"] - before["in_use"] == 8192 + 12_288
    assert sum(now["by_tag"].values()) == now["in_use"]
    tensors.clear()
    assert _deepnvme.pin.stats()["in_use"] == before["in_use"]
