"""Read the next, update this one, write the last: sub-groups through three pinned buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch

from aio.swap.errors import SwapError
from aio.swap.frames import Frames
from aio.swap.schedule import first_kept
from aio.swap.statistics import StepMeter
from aio.swap.store import SwapStore
from aio.swap.store_future import StoreFuture
from aio.swap.sub_groups import SubGroup
from pinned_manager.states.interrupts import Deferred, deferred_signals

SLOTS = 3  # one being read, one being updated, one being written
READS_IN_FLIGHT = 2  # the drive has the next one before this one is over

# The second is the extent with the states, None where there are none yet. Leaves those after the
# update as ``sub_group.extent``.
Update = Callable[[SubGroup, torch.Tensor | None], None]

Misses = dict[SubGroup, str]  # what is to be read, and its name in the store; the next one is last


class TransferFailed(Exception):
    """A read or write of a sub-group; ``__cause__`` says why."""

    def __init__(self, operation: Literal["read", "write"], sub_group: SubGroup) -> None:
        super().__init__(operation, sub_group.number)
        self.operation = operation
        self.sub_group = sub_group


class Pipeline:
    """Extents of sub-groups between a store, three slots and a cache.

    ``resident`` extents are newer than what the store has. Between steps, they take up to
    ``cache_bytes`` and one of the slots, which has nothing else to do then.
    """

    def __init__(self, store: SwapStore, sub_group_bytes: int, cache_bytes: int, name: str) -> None:
        """``name`` begins the names in the store."""
        self.frames = Frames()
        self.resident: dict[SubGroup, torch.Tensor] = {}
        self._store = store
        self._sub_group_bytes = sub_group_bytes
        self._cache_bytes = cache_bytes
        self._name = name
        self._reads: dict[SubGroup, tuple[torch.Tensor, StoreFuture]] = {}
        self._writes: list[tuple[SubGroup, torch.Tensor, StoreFuture]] = []
        self._generation = 0
        self._slot_bytes = 0
        self._signals = Deferred()

    def resident_bytes(self) -> int:
        return sum(extent.numel() for extent in self.resident.values())

    def size_slots(self, sizes: Sequence[int]) -> None:
        """``sizes``: of the extents of all sub-groups, in bytes."""
        # Those of one parameter may be much larger; a little more is padding.
        ordinary = self._sub_group_bytes * 9 // 8
        standard = max((nbytes for nbytes in sizes if nbytes <= ordinary), default=0)
        self.frames.standard_bytes = standard
        self._set_slot_bytes(max(sizes, default=0))

    def _set_slot_bytes(self, nbytes: int) -> None:
        self._slot_bytes = nbytes
        self.frames.allowed_bytes = SLOTS * nbytes + self._cache_bytes

    def run(
        self,
        order: Sequence[SubGroup],
        update: Update,
        meter: StepMeter,
        remaining: list[SubGroup],
        signals: Deferred,
    ) -> None:
        """Update sub-groups in that order. ``remaining`` is filled with those that are not updated:
        none, unless this raises.

        Raises TransferFailed, what ``update`` raises, and what handlers of ``signals`` raise:
        between updates, and while it waits. Nothing is in flight afterwards, and the states of
        every sub-group, old or new, are in the store or resident.
        """
        self._signals = signals
        self._drain()  # a second Ctrl-C may have ended the last one
        remaining[:] = order
        size = self.frames.size
        misses = {
            s: s.stored for s in reversed(order) if s not in self.resident and s.stored is not None
        }
        hits = sum(self.resident[s].numel() for s in order if s in self.resident)
        # One slot is idle between steps: what is updated last stays in it.
        budget = self._cache_bytes + self._slot_bytes
        budget_here = budget - (self.resident_bytes() - hits)
        kept_from = first_kept([size(s.nbytes) for s in order], budget_here)
        try:
            for position, sub_group in enumerate(order):
                signals.run()
                extent = self._arrived(sub_group, order, misses, meter)
                self._read_ahead(misses, meter)
                before = sub_group.nbytes
                with meter.computing(sub_group.number):
                    self._update(sub_group, extent, update)
                remaining.remove(sub_group)
                if sub_group.nbytes != before:  # a layout was learned
                    self._set_slot_bytes(max(self._slot_bytes, sub_group.nbytes))
                    kept_from = first_kept([size(s.nbytes) for s in order], budget_here)
                kept = position >= kept_from and self.resident_bytes() <= budget
                if sub_group in self.resident and not kept:
                    self._land_writes(meter)
                    self._write(sub_group, meter)
                self._read_ahead(misses, meter)
            self._land_writes(meter)
        except BaseException:
            with deferred_signals():  # again: heard() may have been left by a second one
                self._drain()
            raise

    @contextmanager
    def extent_of(self, sub_group: SubGroup) -> Iterator[torch.Tensor | None]:
        """An extent to look at, until the block ends; None where there is none."""
        if sub_group in self.resident or sub_group.stored is None:
            yield self.resident.get(sub_group)
            return
        reading: tuple[torch.Tensor, StoreFuture] | None = None
        try:
            with deferred_signals() as signals:
                reading = frame, future = self._start_read(sub_group, sub_group.stored)
                with signals.heard():
                    future.result()
            yield frame
        finally:
            with deferred_signals():
                if reading is not None:
                    reading[1].exception()  # after Ctrl-C, bytes are still on their way to it
                    self.frames.give(reading[0])

    def new_name(self, sub_group: SubGroup) -> str:
        """A name in the store that was never used."""
        self._generation += 1
        return f"{self._name}: {sub_group.number}.{self._generation}"

    def put_new(self, name: str, nbytes: int, frame: torch.Tensor) -> StoreFuture:
        """Write an extent under a name of its own."""
        return self._store.put(name, [frame[:nbytes]])

    def forget(self, sub_group: SubGroup) -> None:
        """Its states are void."""
        extent = self.resident.pop(sub_group, None)
        if extent is not None:
            self.frames.give(extent)
        name, sub_group.stored = sub_group.stored, None
        if name is not None and name in self._store:  # its first put may have failed
            self._store.delete(name)

    def _update(self, sub_group: SubGroup, extent: torch.Tensor | None, update: Update) -> None:
        sub_group.extent = extent
        try:
            update(sub_group, extent)
        finally:  # an update that fails half way has new states too, as without swapping
            after, sub_group.extent = sub_group.extent, None
            if after is not None:
                self.resident[sub_group] = after

    def _arrived(
        self,
        sub_group: SubGroup,
        order: Sequence[SubGroup],
        misses: Misses,
        meter: StepMeter,
    ) -> torch.Tensor | None:
        if sub_group in self.resident:
            meter.cache_hits += 1
            return self.resident[sub_group]
        if sub_group.stored is None:
            return None
        if sub_group not in self._reads:
            misses.pop(sub_group, None)  # what had to make room was none
            self._make_room(sub_group, order, meter)
            self._read(sub_group, sub_group.stored, meter)
        frame, future = self._reads[sub_group]
        with meter.waiting("read"), self._signals.heard():
            self._landed("read", sub_group, future)
        del self._reads[sub_group]
        self.resident[sub_group] = frame
        return frame

    def _has_room(self, sub_group: SubGroup) -> bool:
        frames = self.frames
        return frames.used_bytes + frames.size(sub_group.nbytes) <= frames.allowed_bytes

    def _make_room(self, sub_group: SubGroup, order: Sequence[SubGroup], meter: StepMeter) -> None:
        """Only needed where gradients come and go, so that the cache is not what comes first."""
        while not self._has_room(sub_group) and (self._writes or self.resident):
            if self._writes:
                self._land_writes(meter)
                continue
            idle = [resident for resident in self.resident if resident not in order]
            self._write(idle[0] if idle else max(self.resident, key=order.index), meter)

    def _read_ahead(self, misses: Misses, meter: StepMeter) -> None:
        """Into what slots and cache have free: what the cache held is written and leaves room, long
        before the end of the order, which is kept, takes it again.
        """
        in_flight = sum(not future.done() for _, future in self._reads.values())
        while misses and in_flight < READS_IN_FLIGHT and self._has_room(next(reversed(misses))):
            self._read(*misses.popitem(), meter)
            in_flight += 1

    def _read(self, sub_group: SubGroup, name: str, meter: StepMeter) -> None:
        frame, future = self._start_read(sub_group, name)
        self._reads[sub_group] = (frame, future)
        meter.transfer("read", sub_group.number, sub_group.nbytes, future)

    def _start_read(self, sub_group: SubGroup, name: str) -> tuple[torch.Tensor, StoreFuture]:
        """Under deferred signals, which would lose sight of it."""
        frame = self.frames.take(sub_group.nbytes)
        try:
            return frame, self._store.get(name, [frame[: sub_group.nbytes]])
        except BaseException:
            self.frames.give(frame)
            raise

    def _write(self, sub_group: SubGroup, meter: StepMeter) -> None:
        frame = self.resident[sub_group]
        name = sub_group.stored or self.new_name(sub_group)
        try:
            # The slot is the other copy, until this one is whole.
            future = self._store.put(name, [frame[: sub_group.nbytes]], in_place=True)
        except OSError as error:  # no room
            raise TransferFailed("write", sub_group) from error
        sub_group.stored = name
        del self.resident[sub_group]
        self._writes.append((sub_group, frame, future))
        meter.transfer("write", sub_group.number, sub_group.nbytes, future)

    def _land_writes(self, meter: StepMeter) -> None:
        while self._writes:
            sub_group, frame, future = self._writes[0]
            with meter.waiting("write"), self._signals.heard():
                self._landed("write", sub_group, future)
            self._writes.pop(0)
            self.frames.give(frame)

    @staticmethod
    def _landed(
        operation: Literal["read", "write"], sub_group: SubGroup, future: StoreFuture
    ) -> None:
        error = future.exception()
        if isinstance(error, (OSError, SwapError)):
            raise TransferFailed(operation, sub_group) from error
        if error is not None:
            raise error

    def _drain(self) -> None:
        """After a failure: wait for the rest. Extents that were not written are resident."""
        for frame, future in self._reads.values():
            future.exception()
            self.frames.give(frame)
        self._reads.clear()
        for sub_group, frame, future in self._writes:
            if future.exception() is None:
                self.frames.give(frame)
            else:
                self.resident[sub_group] = frame
        self._writes.clear()
