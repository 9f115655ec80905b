"""Several directories used at once: a group is split so that all drives end at the same time."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from aio.handle import aio_handle
from aio.swap.errors import SwapFullError
from aio.swap.extents import Extent
from aio.swap.segments import SegmentFiles
from pinned_manager import PinError, new_locked_tensor

_logger = logging.getLogger("aio.swap")

# Less than this to a directory costs more in transfers than it gains in bandwidth.
LEAST_PART_BYTES = 1 << 20
PROBE_BYTES = 16 << 20


@dataclass(frozen=True)
class Place:
    """Where a part of a row of bytes is."""

    directory: int
    extent: Extent
    row_offset: int  # its first byte in the row


def check_bandwidths(bandwidths: Sequence[float], directories: int) -> list[float]:
    """As floats. ValueError unless there is one positive number for each directory."""
    values = [float(value) for value in bandwidths]
    if len(values) != directories:
        raise ValueError(f"bandwidths has {len(values)} values for {directories} directories")
    for value in values:
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"bandwidths has {value}, but they must be positive bytes per second")
    return values


def split_row(
    nbytes: int, weights: Sequence[float], alignment: int, least: int = LEAST_PART_BYTES
) -> list[int]:
    """Bytes for each directory: multiples of ``alignment`` in proportion to the weights.

    A directory whose part would be less than ``least`` gets nothing; where that is all of them, the
    heaviest gets everything. The sum is ``nbytes``, itself a multiple of the alignment.
    """
    taking = list(range(len(weights)))
    while len(taking) > 1:
        total = sum(weights[index] for index in taking)
        lightest = min(taking, key=lambda index: weights[index])
        if nbytes * weights[lightest] / total >= least:
            break
        taking.remove(lightest)
    parts = [0] * len(weights)
    total, given, weight_given = sum(weights[index] for index in taking), 0, 0.0
    for index in taking:
        # Ends, not sizes, are rounded, so that rounding does not add up.
        weight_given += weights[index]
        end = min(round(nbytes * weight_given / total / alignment) * alignment, nbytes)
        if index == taking[-1]:
            end = nbytes
        parts[index], given = end - given, end
    return parts


class Directories:
    """Room for rows of bytes in several directories."""

    def __init__(
        self, segments: Sequence[SegmentFiles], weights: Sequence[float], alignment: int
    ) -> None:
        self.segments = list(segments)
        self.weights = list(weights)
        self._alignment = alignment
        self._lock = threading.Lock()
        self._load = [0.0] * len(segments)  # seconds, or their like: bytes by weight

    def allocate(self, nbytes: int, name: str) -> list[Place]:
        """Places of a row, in its order. SwapFullError, and nothing is taken, without room."""
        parts = self._parts_of(nbytes)
        taken: list[tuple[int, list[Extent]]] = []
        try:
            missing = 0
            for index, part in enumerate(parts):
                found = self.segments[index].allocate(part)
                if found is None:
                    missing += part  # a drive that is full leaves its part to the others
                else:
                    taken.append((index, found))
            if missing:
                self._take_anywhere(missing, nbytes, name, taken)
        except BaseException:
            for index, extents in taken:
                self.segments[index].free(extents)
            raise
        places, offset = [], 0
        for index, extents in taken:
            for extent in extents:
                places.append(Place(index, extent, offset))
                offset += extent.nbytes
        return places

    def free(self, places: Sequence[Place]) -> None:
        """Give a row back."""
        for place in places:
            self.segments[place.directory].free([place.extent])

    def path_of(self, place: Place) -> str:
        """The file of a place."""
        return self.segments[place.directory].paths[place.extent.segment]

    def _parts_of(self, nbytes: int) -> list[int]:
        parts = split_row(nbytes, self.weights, self._alignment)
        with self._lock:
            whole = max(range(len(parts)), key=parts.__getitem__)
            if parts[whole] == nbytes and len(parts) > 1:
                # Groups that are not split go in turn, to where the least is so far.
                least = min(
                    range(len(parts)), key=lambda i: self._load[i] + nbytes / self.weights[i]
                )
                parts[whole], parts[least] = 0, nbytes
            for index, part in enumerate(parts):
                self._load[index] += part / self.weights[index]
        return parts

    def _take_anywhere(
        self, nbytes: int, needed: int, name: str, taken: list[tuple[int, list[Extent]]]
    ) -> None:
        available = {files.directory: files.available() for files in self.segments}
        for index, room in enumerate(available.values()):
            part = min(nbytes, room // self._alignment * self._alignment)
            found = self.segments[index].allocate(part)
            if found:
                taken.append((index, found))
                nbytes -= part
            if nbytes == 0:
                return
        raise SwapFullError(name, needed, available)


def measure(handle: aio_handle, segments: Sequence[SegmentFiles]) -> list[float]:
    """Bytes per second of each directory, written and read once, alone. 1.0 for all of them where
    one cannot be measured.
    """
    try:
        block = new_locked_tensor(PROBE_BYTES, torch.uint8, "swap")
    except PinError:
        block = torch.empty(PROBE_BYTES, dtype=torch.uint8)
    block.zero_()
    rates = []
    for files in segments:
        extents = files.allocate(PROBE_BYTES)
        if extents is None:
            _logger.info(
                "%s has no room to be measured; all directories count alike", files.directory
            )
            return [1.0] * len(segments)
        try:
            items, at = [], 0
            for extent in extents:
                part = block[at : at + extent.nbytes]
                items.append((part, files.paths[extent.segment], extent.offset))
                at += extent.nbytes
            handle.pwrite_many(items)  # blocks that were never written are slower
            start = time.perf_counter()
            handle.pwrite_many(items)
            handle.pread_many(items)
            rates.append(2 * PROBE_BYTES / (time.perf_counter() - start))
        finally:
            files.free(extents)
    return rates
