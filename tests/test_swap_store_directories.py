"""Several directories share a group by their bandwidths; small groups go to one of them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aio.swap import SwapStore
from aio.swap.directories import split_row
from support.buffers import pattern, raw, tensor_of
from support.mounts import small_tmpfs
from support.pinning import no_more_pins

ALIGNMENT = 4096
MIB = 1 << 20


@given(
    st.integers(0, 1 << 20),
    st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=6),
    st.integers(1, 1 << 24),
)
def test_parts(blocks: int, weights: list[float], least: int) -> None:
    """Aligned, complete, none small, and each within one unit of its share."""
    nbytes = blocks * ALIGNMENT
    parts = split_row(nbytes, weights, ALIGNMENT, least)
    assert sum(parts) == nbytes
    assert all(part >= 0 and part % ALIGNMENT == 0 for part in parts)
    used = [index for index, part in enumerate(parts) if part]
    if len(used) > 1:
        total = sum(weights[index] for index in used)
        for index in used:
            share = nbytes * weights[index] / total
            assert abs(parts[index] - share) <= 2 * ALIGNMENT
            assert parts[index] > least - 2 * ALIGNMENT


def shares(store: SwapStore) -> list[int]:
    return [directory["allocated"] for directory in store.stats()["directories"]]


def test_given_bandwidths(tmp_path: Path, make_handle: Any) -> None:
    places = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    data = pattern(16 * MIB)
    with SwapStore(places, make_handle(), bandwidths=[1.0, 2.0, 5.0]) as store:
        store.put("g", [tensor_of(data)]).result()
        assert shares(store) == [2 * MIB, 4 * MIB, 10 * MIB]
        assert raw(store.get("g").result()[0]) == data
        store.delete("g")
        assert shares(store) == [0, 0, 0]


def test_small_groups_are_spread_whole(tmp_path: Path, make_handle: Any) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    with SwapStore(places, make_handle(), bandwidths=[3e9, 1e9]) as store:
        for index in range(40):
            store.put(str(index), [torch.full((ALIGNMENT,), index, dtype=torch.uint8)]).result()
        assert shares(store) == [30 * ALIGNMENT, 10 * ALIGNMENT]
        for index in range(40):
            assert bool((store.get(str(index)).result()[0] == index).all())


def test_measured_bandwidths(tmp_path: Path, make_handle: Any) -> None:
    with SwapStore([tmp_path / "a", tmp_path / "b"], make_handle()) as store:
        stats = store.stats()
        assert all(directory["weight"] > 0 for directory in stats["directories"])
        assert stats["allocated"] == 0  # what the probe used is free again


def test_bandwidths_are_measured_without_memory_that_can_be_locked(
    tmp_path: Path, make_handle: Any
) -> None:
    handle = make_handle()
    with no_more_pins(), SwapStore([tmp_path / "a", tmp_path / "b"], handle) as store:
        weights = [directory["weight"] for directory in store.stats()["directories"]]
        assert weights != [1.0, 1.0]  # as where they cannot be measured
    assert sum(handle.stats()["bytes"]["read"].values()) == 2 * 16 * MIB


def test_a_drive_without_room_to_measure(
    tmp_path: Path, make_handle: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """All directories count alike; what was measured before is no bandwidth beside it."""
    caplog.set_level(logging.INFO, "aio.swap")
    with small_tmpfs(tmp_path / "small", 8 * MIB) as small:
        with SwapStore([tmp_path / "a", small], make_handle()) as store:
            weights = [directory["weight"] for directory in store.stats()["directories"]]
            assert weights == [1.0, 1.0]
            assert shares(store) == [0, 0]
            data = pattern(8 * MIB)
            store.put("g", [tensor_of(data)]).result()
            assert shares(store) == [4 * MIB, 4 * MIB]
            assert raw(store.get("g").result()[0]) == data
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1
        assert said[0].startswith(str(small))
        assert said[0].endswith("has no room to be measured; all directories count alike")


@pytest.mark.parametrize(
    ("bandwidths", "words"),
    [([1.0], "1 values for 2"), ([1.0, 0.0], "positive"), ([1.0, float("nan")], "positive")],
)
def test_bad_bandwidths(tmp_path: Path, bandwidths: list[float], words: str) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(ValueError, match=words):
        SwapStore(places, bandwidths=bandwidths)
    assert list(tmp_path.iterdir()) == []


def test_bad_directories(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        SwapStore([])
    with pytest.raises(ValueError, match="twice"):
        SwapStore([tmp_path, tmp_path / "."])
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        SwapStore([tmp_path / "good", tmp_path / "file"])
    assert list((tmp_path / "good").iterdir()) == []  # the first one is cleaned up
