"""Pinned means that every byte touched lies in one region, strides and all (E-02)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import _deepnvme
import aio
from support.addresses import memory_at
from support.buffers import PAGE, locked

PAGES = 8


class Neighbours:
    """Two pinned regions back to back, and views that start in the first."""

    def __init__(self) -> None:
        self.pins = aio.pin_handle()
        kept = [locked(self.pins, PAGES * PAGE) for _ in range(40)]
        by_address = sorted(kept, key=lambda tensor: tensor.data_ptr())
        for first, second in pairwise(by_address):
            if first.data_ptr() + PAGES * PAGE == second.data_ptr():
                self.first, self.second = first, second
                return
        pytest.skip("no two regions lie back to back")

    def view(self, start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        """Bytes from `start` of the first region, whatever region they reach."""
        memory = memory_at(self.first.data_ptr(), 2 * PAGES * PAGE)
        return np.ndarray(shape, np.uint8, buffer=memory.data, offset=start, strides=strides)

    def verdicts(self, view: Any) -> set[bool]:
        """What the doors say, which must be one thing."""
        seen = [view, torch.from_numpy(view)] if min(view.strides, default=0) >= 0 else [view]
        doors = (self.pins, aio.pin_handle(), _deepnvme.pin)
        return {door.is_pinned(one) for door in doors for one in seen}


@pytest.fixture(scope="module")
def neighbours() -> Neighbours:
    return Neighbours()


END = PAGES * PAGE


@given(
    start=st.one_of(st.integers(0, END), st.sampled_from([0, 1, END - 1, END])),
    rows=st.integers(0, 50),
    columns=st.integers(0, 200),
    steps=st.tuples(st.integers(0, 900), st.integers(0, 5)),
)
def test_the_whole_span_counts(
    neighbours: Neighbours, start: int, rows: int, columns: int, steps: tuple[int, int]
) -> None:
    if rows == 0 or columns == 0:
        expected = False
        start = min(start, END)
    else:
        last = start + (rows - 1) * steps[0] + (columns - 1) * steps[1]
        if last >= 2 * END:
            return
        expected = last < END or start >= END
    view = neighbours.view(start, (rows, columns), steps)
    assert neighbours.verdicts(view) == {expected}


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, END, True),
        (END - 1, 1, True),
        (END - 1, 2, False),
        (END, 1, True),
        (END, END, True),
        (0, 2 * END, False),
        (0, 0, False),
        (END, 0, False),
    ],
)
def test_edges(neighbours: Neighbours, start: int, length: int, expected: bool) -> None:
    assert neighbours.verdicts(neighbours.view(start, (length,), (1,))) == {expected}


def test_a_negative_stride_reaches_down(neighbours: Neighbours) -> None:
    backwards = neighbours.view(0, (END + 5,), (1,))[::-1]
    assert neighbours.verdicts(backwards) == {False}
    assert neighbours.verdicts(backwards[5:]) == {True}


def test_the_rest_of_the_last_page_is_not_the_tensors() -> None:
    """A region has the bytes that were asked for, not the pages behind them."""
    pins = aio.pin_handle()
    tensor = locked(pins, 100)
    memory = memory_at(tensor.data_ptr(), PAGE)
    assert pins.is_pinned(memory[:100])
    assert not pins.is_pinned(memory[:101])
    assert not pins.is_pinned(memory[100:])
