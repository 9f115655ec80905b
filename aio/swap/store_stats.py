"""What SwapStore.stats() returns, and the counts in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from aio.swap.directories import Directories


class DirectoryStats(TypedDict):
    """One directory of a store; sizes in bytes."""

    path: str
    weight: float  # as given, or bytes per second as measured
    allocated: int  # in extents, padding and what is being replaced included
    files: int  # of its files
    available: int  # in free extents and on the file system


class OperationCounts(TypedDict):
    """What a store has done since it was made."""

    writes: int  # puts that were written
    reads: int  # groups that were read
    prefetch_hits: int  # gets that took what was prefetched
    bytes_written: int
    bytes_read: int
    failed: int  # operations


class StoreStats(OperationCounts):
    """What a store holds, and has done since it was made."""

    names: int
    stored: int  # bytes of tensors
    allocated: int
    prefetched: int  # bytes in pinned memory for the next get
    directories: list[DirectoryStats]
    in_flight: int  # operations


@dataclass
class Done:
    """Operations of one direction that have succeeded."""

    operations: int = 0
    nbytes: int = 0


class Counts:
    """Counted under the lock of the store."""

    def __init__(self) -> None:
        self.writes = Done()
        self.reads = Done()
        self.prefetch_hits = 0
        self._failed = 0

    def ended(self, direction: Done, nbytes: int, error: BaseException | None) -> None:
        """One of ``writes`` or ``reads`` is over."""
        if error is None:
            direction.operations += 1
            direction.nbytes += nbytes
        else:
            self._failed += 1

    def as_dict(self) -> OperationCounts:
        return {
            "writes": self.writes.operations,
            "reads": self.reads.operations,
            "prefetch_hits": self.prefetch_hits,
            "bytes_written": self.writes.nbytes,
            "bytes_read": self.reads.nbytes,
            "failed": self._failed,
        }


def directory_stats(directories: Directories) -> list[DirectoryStats]:
    """Of each directory, as it is now."""
    return [
        {
            "path": files.directory,
            "weight": weight,
            "allocated": files.allocated_bytes,
            "files": files.file_bytes,
            "available": files.available(),
        }
        for files, weight in zip(directories.segments, directories.weights, strict=True)
    ]
