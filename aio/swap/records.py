"""Which content each name of a store has, and which operations must come before which.

1. Operations on one name take effect in the order of the calls; different names do not wait for
   each other. All of this is decided under one lock, never held during a transfer.
2. A put writes to places of its own. When it is over, its content replaces the old one; when it has
   failed, the old one stays. A put waits for the put before it; a read for the put before it, whose
   failure it reports.
3. A put in place writes over the content of the name, after everything that still reads it.
4. Content is counted: one for the name, one for each operation on it. The last one to go gives its
   places back, so that no place is reused while a transfer is on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from aio.swap.layout import GroupLayout
from aio.swap.store_future import Operation
from aio.swap.transfers import Version


@dataclass(eq=False)
class Record:
    """A name, and what is going on with it."""

    name: str
    current: Version | None = None  # written
    latest: Version | None = None  # what reads get that are started now
    writer: Operation | None = None  # the last put that is not over
    readers: set[Operation] = field(default_factory=set)
    prefetched: Operation | None = None  # its result is the container of pinned tensors


class Records:
    """The names of a store. Callers hold ``lock`` around every method."""

    def __init__(self, give_back: Callable[[Version], None]) -> None:
        self.lock = threading.Lock()
        self.operations: set[Operation] = set()  # that are not over
        self._give_back = give_back
        self._names: dict[str, Record] = {}

    def names(self) -> list[str]:
        return list(self._names)

    def versions(self) -> list[Version]:
        """What is stored, or being stored, under each name."""
        return [record.latest for record in self._names.values() if record.latest is not None]

    def find(self, name: str) -> tuple[Record, Version]:
        """KeyError for a name that was not put."""
        record = self._names.get(name)
        if record is None or record.latest is None:
            raise KeyError(f"nothing is stored under {name!r}")
        return record, record.latest

    def to_overwrite(self, name: str, layout: GroupLayout) -> Version | None:
        """The content that a put in place writes over; None if it cannot, and needs new places."""
        record = self._names.get(name)
        if record is None or record.current is not record.latest or record.current is None:
            return None
        return record.current if record.current.layout == layout else None

    def record(self, name: str) -> Record:
        """The one of a name, or a new one, which add_put() makes known."""
        return self._names.get(name) or Record(name)

    def add_overwrite(
        self, record: Record, version: Version, operation: Operation
    ) -> list[Operation]:
        """What the operation has to wait for."""
        version.uses += 1
        return self._add_writer(record, operation, [*record.readers])

    def end_overwrite(
        self, record: Record, version: Version, operation: Operation, error: BaseException | None
    ) -> None:
        version.damage = error
        if _nothing_is_on_the_way(error):
            self._release(version)
        if record.writer is operation:
            record.writer = None

    def add_put(self, record: Record, version: Version, operation: Operation) -> list[Operation]:
        """What the operation has to wait for."""
        self._names[record.name] = record
        record.latest = version
        return self._add_writer(record, operation, [])

    def end_put(
        self, record: Record, version: Version, operation: Operation, error: BaseException | None
    ) -> None:
        known = self._names.get(record.name) is record  # it may have been deleted
        if record.writer is operation:
            record.writer = None
        if known and error is None:
            replaced, record.current = record.current, version
            if replaced is not None:
                self._release(replaced)
            return
        if _nothing_is_on_the_way(error):
            self._release(version)
        if known and record.latest is version:
            record.latest = record.current
            if record.current is None:
                del self._names[record.name]

    def add_reader(self, record: Record, version: Version, operation: Operation) -> None:
        version.uses += 1
        record.readers.add(operation)

    def end_reader(self, record: Record, version: Version, operation: Operation) -> None:
        record.readers.discard(operation)
        self._release(version)

    def prefetched_bytes(self) -> int:
        return sum(
            record.latest.layout.nbytes
            for record in self._names.values()
            if record.prefetched is not None and record.latest is not None
        )

    def delete(self, name: str) -> None:
        """KeyError for a name that was not put."""
        record, _ = self.find(name)
        del self._names[name]
        if record.current is not None:
            self._release(record.current)

    def writers(self) -> list[Operation]:
        """Puts that are not over."""
        return [record.writer for record in self._names.values() if record.writer is not None]

    def forget_all(self) -> None:
        """Names only; the files are about to go."""
        self._names.clear()

    def _add_writer(
        self, record: Record, operation: Operation, after: list[Operation]
    ) -> list[Operation]:
        if record.writer is not None:
            after.append(record.writer)
        record.writer = operation
        record.prefetched = None
        return after

    def _release(self, version: Version) -> None:
        version.uses -= 1
        if version.uses == 0:
            self._give_back(version)


def _nothing_is_on_the_way(error: BaseException | None) -> bool:
    """KeyboardInterrupt in the middle of a step, which another thread can have raised there, loses
    sight of its transfers: their places stay taken.
    """
    return error is None or isinstance(error, Exception)
