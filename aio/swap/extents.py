"""Aligned extents inside segments: pure bookkeeping, without files.

Best fit, lowest address first among equals; neighbours that are free are one run again at once.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple


class Extent(NamedTuple):
    """A run of bytes of one segment."""

    segment: int
    offset: int  # bytes
    nbytes: int


class ExtentAllocator:
    """Which bytes of which segment are free. Sizes and offsets are multiples of ``alignment``.

    Not locked: whoever uses it from several threads does that.
    """

    def __init__(self, alignment: int) -> None:
        if alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"alignment is {alignment} bytes, but must be a power of two")
        self.alignment = alignment
        self._sizes: list[int] = []  # of the segments
        self._starts: list[list[int]] = []  # of the free runs of each segment, ascending
        self._runs: list[dict[int, int]] = []  # their sizes, by start
        self._used: dict[tuple[int, int], int] = {}
        self._free_bytes = 0

    @property
    def segments(self) -> int:
        """How many there are."""
        return len(self._sizes)

    @property
    def total_bytes(self) -> int:
        """Of all segments."""
        return sum(self._sizes)

    @property
    def free_bytes(self) -> int:
        """Not allocated, in whatever pieces."""
        return self._free_bytes

    @property
    def allocated_bytes(self) -> int:
        """In extents that were not freed."""
        return self.total_bytes - self._free_bytes

    def add_segment(self, nbytes: int) -> int:
        """One more segment, all free; returns its number. ValueError for a size that does not fit
        the alignment.
        """
        self._check_size(nbytes)
        self._sizes.append(nbytes)
        self._starts.append([0])
        self._runs.append({0: nbytes})
        self._free_bytes += nbytes
        return len(self._sizes) - 1

    def allocate(self, nbytes: int) -> Extent | None:
        """One extent of that size, from the smallest free run that holds it; None without one."""
        self._check_size(nbytes)
        fitting = (
            (size, segment, start)
            for segment, runs in enumerate(self._runs)
            for start, size in runs.items()
            if size >= nbytes
        )
        _, segment, start = min(fitting, default=(0, -1, 0))
        return None if segment < 0 else self._take(segment, start, nbytes)

    def allocate_scattered(self, nbytes: int) -> list[Extent] | None:
        """Extents that together have that size, as few as can be; None where too little is free."""
        self._check_size(nbytes)
        if nbytes > self._free_bytes:
            return None
        largest_last = sorted(
            (size, -segment, -start)
            for segment, runs in enumerate(self._runs)
            for start, size in runs.items()
        )
        taken = []
        while nbytes:
            size, segment, start = largest_last.pop()
            taken.append(self._take(-segment, -start, min(size, nbytes)))
            nbytes -= taken[-1].nbytes
        return taken

    def free(self, extent: Extent) -> None:
        """Give back what was allocated. ValueError for anything else, such as a second time."""
        segment, start, nbytes = extent
        if self._used.get((segment, start)) != nbytes:
            raise ValueError(f"{extent} is not allocated")
        del self._used[segment, start]
        self._free_bytes += nbytes
        starts, runs = self._starts[segment], self._runs[segment]
        at = bisect.bisect_left(starts, start)
        if at < len(starts) and starts[at] == start + nbytes:
            nbytes += runs.pop(starts.pop(at))
        if at > 0 and starts[at - 1] + runs[starts[at - 1]] == start:
            runs[starts[at - 1]] += nbytes
        else:
            starts.insert(at, start)
            runs[start] = nbytes

    def _take(self, segment: int, start: int, nbytes: int) -> Extent:
        starts, runs = self._starts[segment], self._runs[segment]
        left = runs.pop(start) - nbytes
        at = bisect.bisect_left(starts, start)
        if left:
            starts[at] = start + nbytes
            runs[start + nbytes] = left
        else:
            del starts[at]
        self._used[segment, start] = nbytes
        self._free_bytes -= nbytes
        return Extent(segment, start, nbytes)

    def _check_size(self, nbytes: int) -> None:
        if nbytes < 1 or nbytes % self.alignment:
            raise ValueError(
                f"{nbytes} bytes, but sizes must be positive multiples of {self.alignment}"
            )
