"""Extents never overlap, are counted to the byte, and free neighbours become one (group G)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio.swap.extents import Extent, ExtentAllocator

ALIGNMENT = 4096
SEGMENTS = st.lists(st.integers(1, 12), min_size=1, max_size=3)
# A number of blocks to allocate, as one or scattered; or which of the extents to free.
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["one", "scattered", "free"]), st.integers(1, 14)), max_size=40
)


def blocks_of(extent: Extent) -> set[tuple[int, int]]:
    first = extent.offset // ALIGNMENT
    return {(extent.segment, first + index) for index in range(extent.nbytes // ALIGNMENT)}


def has_run(free: set[tuple[int, int]], length: int) -> bool:
    return any(all((s, b + i) in free for i in range(length)) for s, b in free)


@given(SEGMENTS, ACTIONS)
def test_against_a_set_of_blocks(segments: list[int], actions: list[tuple[str, int]]) -> None:
    allocator = ExtentAllocator(ALIGNMENT)
    free = {(s, b) for s, blocks in enumerate(segments) for b in range(blocks)}
    for number, blocks in enumerate(segments):
        assert allocator.add_segment(blocks * ALIGNMENT) == number
    everything = set(free)
    taken: list[Extent] = []
    for action, number in actions:
        if action == "free":
            if taken:
                extent = taken.pop(number % len(taken))
                allocator.free(extent)
                free |= blocks_of(extent)
        elif action == "one":
            found = allocator.allocate(number * ALIGNMENT)
            assert (found is not None) == has_run(free, number)
            if found is not None:
                assert found.nbytes == number * ALIGNMENT
                assert blocks_of(found) <= free
                free -= blocks_of(found)
                taken.append(found)
        else:
            several = allocator.allocate_scattered(number * ALIGNMENT)
            assert (several is not None) == (len(free) >= number)
            for extent in several or []:
                assert blocks_of(extent) <= free
                free -= blocks_of(extent)
                taken.append(extent)
            if several is not None:
                assert sum(extent.nbytes for extent in several) == number * ALIGNMENT
        assert allocator.free_bytes == len(free) * ALIGNMENT
        assert allocator.allocated_bytes == (len(everything) - len(free)) * ALIGNMENT
    for extent in taken:
        allocator.free(extent)
    for blocks in segments:  # each one run again
        assert allocator.allocate(blocks * ALIGNMENT) is not None
    assert allocator.free_bytes == 0


def test_what_is_not_allocated_cannot_be_freed() -> None:
    allocator = ExtentAllocator(ALIGNMENT)
    allocator.add_segment(4 * ALIGNMENT)
    extent = allocator.allocate(2 * ALIGNMENT)
    assert extent is not None
    for wrong in (extent._replace(nbytes=ALIGNMENT), extent._replace(offset=ALIGNMENT)):
        with pytest.raises(ValueError, match="not allocated"):
            allocator.free(wrong)
    allocator.free(extent)
    with pytest.raises(ValueError, match="not allocated"):
        allocator.free(extent)
    assert allocator.free_bytes == 4 * ALIGNMENT


@pytest.mark.parametrize("nbytes", [0, -ALIGNMENT, 1, ALIGNMENT + 512])
def test_sizes_that_are_not_aligned_are_refused(nbytes: int) -> None:
    allocator = ExtentAllocator(ALIGNMENT)
    for call in (allocator.add_segment, allocator.allocate, allocator.allocate_scattered):
        with pytest.raises(ValueError, match="multiples of 4096"):
            call(nbytes)


@pytest.mark.parametrize("alignment", [0, -1, 3, 4097])
def test_alignment_is_a_power_of_two(alignment: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        ExtentAllocator(alignment)
