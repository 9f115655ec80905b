"""Rows of bytes between tensors and their places: bodies from where they are, the rest in chunks.

Both directions are steps of an operation. However they end, no transfer is in flight then, so that
memory and extents can be given back.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import torch

from aio.handle import aio_handle
from aio.swap.background import Background
from aio.swap.checksum import Checksums
from aio.swap.directories import Directories, Place
from aio.swap.layout import (
    Chunk,
    GroupLayout,
    Packed,
    TensorSpec,
    empty_as,
    is_stored_as,
    octets_of,
)
from aio.swap.store_future import Awaited
from pinned_manager import PinError, new_locked_tensor

_logger = logging.getLogger("aio.swap")

CHUNKS_IN_FLIGHT = 4  # of one operation

# (bytes, file, offset in the file), as the handle takes them
Item = tuple[torch.Tensor, str, int]
Waits = Generator[Awaited, None, None]


@dataclass(eq=False)
class Version:
    """The content that a name has, had, or is about to have."""

    layout: GroupLayout
    places: list[Place]
    checksums: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    uses: int = 1  # the name, and operations in flight; without any the places are free
    damage: BaseException | None = None  # why an overwrite in place left neither old nor new


def new_pinned(spec: TensorSpec) -> torch.Tensor:
    """A pinned tensor like that, ordinary memory where no more can be locked."""
    numel = spec.shape.numel()
    try:
        flat = new_locked_tensor(numel, spec.dtype, "swap")
    except PinError as error:
        _logger.info("ordinary memory is used instead: %s", error)
        flat = torch.empty(numel, dtype=spec.dtype)
    return empty_as(spec, flat)


class RowTransfers:
    """Moves groups with one handle."""

    def __init__(
        self,
        handle: aio_handle,
        directories: Directories,
        checksums: Checksums | None,
        background: Background,
    ) -> None:
        self._handle = handle
        self._directories = directories
        self._checksums = checksums
        self._background = background

    def write(self, version: Version, tensors: Sequence[torch.Tensor]) -> Waits:
        """Steps that write tensors; raises AioError once nothing is in flight."""
        layout = version.layout
        octets = [
            octets_of(_dense(tensor, spec))
            for tensor, spec in zip(tensors, layout.specs, strict=True)
        ]
        flight = _Flight()
        digests: dict[tuple[str, int], list[int]] = {}
        try:
            self._start_write(flight, digests, self._body_items(version, octets))
            for chunk in layout.chunks:
                yield from flight.below(2 * CHUNKS_IN_FLIGHT)
                self._start_write(
                    flight, digests, self._items(version, _gathered(chunk, octets), chunk.offset)
                )
        except Exception as error:
            flight.fail(error)
        yield from flight.landed()
        version.checksums = digests

    def read(self, version: Version, tensors: Sequence[torch.Tensor]) -> Waits:
        """Steps that fill tensors; raises AioError or ChecksumError once nothing is in flight."""
        specs = version.layout.specs
        dense = [
            tensor if is_stored_as(tensor, spec) else empty_as(spec, _flat_like(tensor, spec))
            for tensor, spec in zip(tensors, specs, strict=True)
        ]
        octets = [octets_of(tensor) for tensor in dense]
        flight = _Flight()
        try:
            yield from self._read_all(flight, version, octets)
        except Exception as error:
            flight.fail(error)
        yield from flight.landed()
        with torch.inference_mode():
            for tensor, filled in zip(tensors, dense, strict=True):
                if filled is not tensor:
                    tensor.copy_(filled)

    def _start_write(
        self, flight: _Flight, digests: dict[tuple[str, int], list[int]], items: list[Item]
    ) -> None:
        if not items:
            return
        flight.add(self._handle.submit_pwrite_many(items))
        if self._checksums is not None:
            flight.add(self._background.submit(self._digest, self._checksums, digests, items))

    def _read_all(self, flight: _Flight, version: Version, octets: list[torch.Tensor]) -> Waits:
        bodies = self._body_items(version, octets)
        if bodies:
            flight.add(self._handle.submit_pread_many(bodies))
        on_the_way: deque[tuple[Chunk, torch.Tensor, Awaited]] = deque()
        for chunk in version.layout.chunks:
            if len(on_the_way) == CHUNKS_IN_FLIGHT:
                yield from self._scatter(version, octets, *on_the_way.popleft())
            block = _block(chunk.nbytes)
            io = self._handle.submit_pread_many(self._items(version, block, chunk.offset))
            flight.add(io)
            on_the_way.append((chunk, block, io))
        while on_the_way:
            yield from self._scatter(version, octets, *on_the_way.popleft())
        yield from flight.landed()
        if self._checksums is not None and bodies:
            flight.add(self._background.submit(self._verify, self._checksums, version, bodies))

    def _scatter(
        self,
        version: Version,
        octets: list[torch.Tensor],
        chunk: Chunk,
        block: torch.Tensor,
        io: Awaited,
    ) -> Waits:
        yield io
        if io.exception() is not None:
            return  # the flight tells
        if self._checksums is not None:
            items = self._items(version, block, chunk.offset)
            verified = self._background.submit(self._verify, self._checksums, version, items)
            yield verified
            verified.result()
        with torch.inference_mode():  # the caller's tensors may be made in it
            for piece in chunk.pieces:
                part = block[piece.offset : piece.offset + piece.nbytes]
                _part(octets[piece.tensor], piece).copy_(part)

    def _body_items(self, version: Version, octets: list[torch.Tensor]) -> list[Item]:
        return [
            item
            for body in version.layout.bodies
            for item in self._items(version, octets[body.tensor][: body.nbytes], body.offset)
        ]

    def _items(self, version: Version, octets: torch.Tensor, row_offset: int) -> list[Item]:
        """Where a part of the row goes: one item for each place that it touches."""
        items: list[Item] = []
        places = version.places
        at = bisect_right(places, row_offset, key=lambda place: place.row_offset) - 1
        done, end = 0, octets.numel()
        while done < end:
            place = places[at]
            skip = row_offset + done - place.row_offset
            nbytes = min(place.extent.nbytes - skip, end - done)
            where = place.extent.offset + skip
            items.append((octets[done : done + nbytes], self._directories.path_of(place), where))
            done += nbytes
            at += 1
        return items

    @staticmethod
    def _digest(
        checksums: Checksums, digests: dict[tuple[str, int], list[int]], items: list[Item]
    ) -> None:
        for octets, path, offset in items:
            digests[path, offset] = checksums.of(octets)

    @staticmethod
    def _verify(checksums: Checksums, version: Version, items: list[Item]) -> None:
        for octets, path, offset in items:
            checksums.verify(octets, version.checksums[path, offset], path, offset)


class _Flight:
    """What one operation has started, and its first failure."""

    def __init__(self) -> None:
        self._pending: deque[Awaited] = deque()
        self._failure: BaseException | None = None

    def add(self, awaited: Awaited) -> None:
        self._pending.append(awaited)

    def fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def below(self, limit: int) -> Waits:
        """Wait until fewer than ``limit`` are in flight; raises what has failed meanwhile."""
        while len(self._pending) >= limit:
            yield from self._oldest()
        if self._failure is not None:
            raise self._failure

    def landed(self) -> Waits:
        """Wait for everything; raises the first failure."""
        while self._pending:
            yield from self._oldest()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            try:
                raise failure
            finally:
                del failure  # its traceback refers to this frame

    def _oldest(self) -> Waits:
        awaited = self._pending[0]
        yield awaited
        self._pending.popleft()
        error = awaited.exception()
        if error is not None:
            self.fail(error.with_traceback(None) if isinstance(error, OSError) else error)


def _block(nbytes: int) -> torch.Tensor:
    return new_pinned(TensorSpec(torch.uint8, torch.Size([nbytes]), (1,), nbytes))


def _gathered(chunk: Chunk, octets: list[torch.Tensor]) -> torch.Tensor:
    block = _block(chunk.nbytes)
    parts = [_part(octets[piece.tensor], piece) for piece in chunk.pieces]
    used = sum(piece.nbytes for piece in chunk.pieces)
    torch.cat([part.cpu() for part in parts], out=block[:used])
    block[used:].zero_()  # what memory held before is nobody's business
    return block


def _part(octets: torch.Tensor, piece: Packed) -> torch.Tensor:
    if piece.start == 0 and piece.nbytes == octets.numel():
        return octets  # a view less for each of many small tensors
    return octets[piece.start : piece.start + piece.nbytes]


def _dense(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    if is_stored_as(tensor, spec):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _flat_like(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    return torch.empty(spec.shape.numel(), dtype=spec.dtype, device=tensor.device)
