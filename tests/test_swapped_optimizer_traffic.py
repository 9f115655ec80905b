"""Bytes that a step moves, and memory that it takes: both by other counts than the optimizer's own
(G-12, G-15).
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aio
from aio.swap import SwappedOptimizer, SwapStore
from aio.swap.frames import Frames
from aio.swap.schedule import first_kept
from pinned_manager import pinned_stats
from support.counters import status_kb
from support.swapped import give_gradients, made_parameters

pytestmark = pytest.mark.usefixtures("one_thread")

EACH = 64 << 10  # bytes of the states of one parameter
COUNT = 16
PARAMETER = (EACH // 8,)  # Adam keeps two float32 numbers for each element


def moved(handle: aio.aio_handle) -> tuple[int, int]:
    counts: Any = handle.stats()["bytes"]
    return sum(counts["read"].values()), sum(counts["write"].values())


def pinned_bytes() -> int:
    return pinned_stats()["by_tag"].get("swap", 0)


@pytest.mark.parametrize("cached", [0, 3, 8, 12, 16])
def test_a_cache_saves_its_part_of_the_traffic(disk: Path, cached: int) -> None:
    params = made_parameters(*[PARAMETER] * COUNT)
    gc.collect()
    others = pinned_bytes()  # what the failures of other tests still hold
    with (
        aio.aio_handle() as handle,
        SwapStore(disk, handle) as store,
        SwappedOptimizer(
            params,
            torch.optim.Adam,
            swap_dir=store,
            sub_group_bytes=EACH,
            cache_bytes=cached * EACH,
        ) as swapped,
    ):
        for step in range(5):
            before = moved(handle)
            give_gradients(params, step)
            swapped.step()
            read, written = (a - b for a, b in zip(moved(handle), before, strict=True))
            # The slot that is idle between steps keeps one more.
            expected = max(COUNT - cached - 1, 0) * EACH
            assert (read, written) == (expected if step else 0, expected)
            assert pinned_bytes() - others <= (cached + 3) * EACH
            assert swapped.stats()["cached_bytes"] <= (cached + 1) * EACH
        stats = swapped.stats()
        assert (stats["bytes_read"], stats["bytes_written"]) == moved(handle)
        assert stats["state_bytes"] == COUNT * EACH


@given(
    sizes=st.lists(st.integers(1, 20_000), min_size=1, max_size=12),
    cache=st.integers(0, 200_000),
    missing=st.lists(st.integers(0, 4095), min_size=4, max_size=4),
)
def test_memory_is_bounded_for_any_sizes(
    disk: Path, sizes: list[int], cache: int, missing: list[int]
) -> None:
    params = made_parameters(*[(size,) for size in sizes])
    with SwappedOptimizer(
        params, torch.optim.Adam, swap_dir=disk, sub_group_bytes=50_000, cache_bytes=cache
    ) as swapped:
        give_gradients(params, 0)
        swapped.step()
        bound = cache + 3 * max(sub_group.nbytes for sub_group in swapped._sub_groups)
        for step, without in enumerate(missing, 1):
            give_gradients(params, step, without)
            swapped.step()
            assert swapped.stats()["peak_buffer_bytes"] <= bound


@given(sizes=st.lists(st.integers(0, 50), max_size=12), budget=st.integers(0, 300))
def test_the_cache_never_exceeds_its_size(sizes: list[int], budget: int) -> None:
    """At every position of three steps, there and back."""
    order = list(range(len(sizes)))
    resident: set[int] = set()
    for _ in range(3):
        kept_from = first_kept([sizes[i] for i in order], budget)
        for position, which in enumerate(order):
            if position >= kept_from:
                resident.add(which)
            else:
                resident.discard(which)
            assert sum(sizes[i] for i in resident) <= budget
        order.reverse()


def test_free_buffers_make_room_for_others() -> None:
    frames = Frames()
    frames.allowed_bytes = 3 * 8192
    small = [frames.take(8192) for _ in range(3)]
    for frame in small:
        frames.give(frame)
    assert frames.bytes == 3 * 8192
    large = frames.take(2 * 8192)
    assert (large.numel(), frames.bytes, frames.peak_bytes) == (2 * 8192, 3 * 8192, 3 * 8192)
    assert frames.take(8192) is small[2]  # used again


@pytest.mark.not_sanitized("memory that is freed stays resident for a while")
def test_memory_is_flat(disk: Path) -> None:
    params = made_parameters(*[PARAMETER] * COUNT)
    with SwappedOptimizer(
        params, torch.optim.Adam, swap_dir=disk, sub_group_bytes=EACH, cache_bytes=5 * EACH
    ) as swapped:
        give_gradients(params, 0)
        for _ in range(3):
            swapped.step()
        locked, resident = status_kb("VmLck"), status_kb("VmRSS")
        for _ in range(200):
            swapped.step()
        assert status_kb("VmLck") == locked
        assert status_kb("VmRSS") - resident < COUNT * EACH >> 10


def test_parameters_are_not_split_and_sub_groups_are_full(disk: Path) -> None:
    params = made_parameters((100,), (100,), (5000,), (100,), (100,))
    with SwappedOptimizer(
        params, torch.optim.Adam, swap_dir=disk, sub_group_bytes=2 * 800
    ) as swapped:
        sizes = [len(sub_group.members) for sub_group in swapped._sub_groups]
    assert sizes == [2, 1, 2]


def test_without_gradients_nothing_is_moved(disk: Path) -> None:
    params = made_parameters(*[PARAMETER] * 4)
    with (
        aio.aio_handle() as handle,
        SwapStore(disk, handle) as store,
        SwappedOptimizer(params, torch.optim.Adam, swap_dir=store, sub_group_bytes=EACH) as swapped,
    ):
        give_gradients(params, 0)
        swapped.step()
        before = moved(handle)
        swapped.zero_grad()
        swapped.step()
        assert moved(handle) == before


def test_spans_tell_what_went_on(disk: Path) -> None:
    params = made_parameters(*[PARAMETER] * 4)
    with SwappedOptimizer(params, torch.optim.Adam, swap_dir=disk, sub_group_bytes=EACH) as swapped:
        assert swapped.stats()["last_step"] is None
        for step in range(2):
            give_gradients(params, step)
            swapped.step()
        stats = swapped.stats()
        last = stats["last_step"]
        assert last is not None
        kinds = [(span["kind"], span["sub_group"]) for span in last["spans"]]
        assert sorted(kinds) == sorted(
            [("compute", i) for i in range(4)]
            + [("read", i) for i in range(3)]
            + [("write", i) for i in range(1, 4)]
        )
        assert all(0 <= s["start"] <= s["end"] <= last["seconds"] for s in last["spans"])
        parts = last["read_seconds"] + last["compute_seconds"] + last["write_seconds"]
        assert parts - last["overlap_seconds"] <= last["seconds"]
        assert (last["bytes_read"], last["bytes_written"]) == (3 * EACH, 3 * EACH)
        assert (last["cache_hits"], stats["steps"]) == (1, 2)
