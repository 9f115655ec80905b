"""What SwapStore.stats() returns."""

from __future__ import annotations

from typing import TypedDict


class DirectoryStats(TypedDict):
    """One directory of a store; sizes in bytes."""

    path: str
    weight: float  # as given, or bytes per second as measured
    allocated: int  # in extents, padding and what is being replaced included
    files: int  # of its files
    available: int  # in free extents and on the file system


class StoreStats(TypedDict):
    """What a store holds, and has done since it was made."""

    names: int
    stored: int  # bytes of tensors
    allocated: int
    prefetched: int  # bytes in pinned memory for the next get
    directories: list[DirectoryStats]
    writes: int  # puts that were written
    reads: int  # groups that were read
    prefetch_hits: int  # gets that took what was prefetched
    bytes_written: int
    bytes_read: int
    failed: int  # operations
    in_flight: int  # operations
