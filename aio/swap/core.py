"""The parts of a store at work. It outlives the SwapStore that it belongs to until nothing is in
flight.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch

from aio.handle import aio_handle
from aio.swap.background import Background
from aio.swap.checksum import Checksums
from aio.swap.completions import Completions
from aio.swap.directories import Directories
from aio.swap.errors import SwapError
from aio.swap.layout import GroupLayout, Tensors, check_out, layout_of, values_of
from aio.swap.ownership import Namespace
from aio.swap.records import Record, Records
from aio.swap.store_future import Operation, Steps, StoreFuture
from aio.swap.store_stats import Counts, StoreStats, directory_stats
from aio.swap.transfers import RowTransfers, Version, new_pinned
from pinned_manager.states.interrupts import deferred_signals

_logger = logging.getLogger("aio.swap")


class StoreCore:
    """See SwapStore for what each method is to its user."""

    def __init__(
        self,
        handle: aio_handle,
        directories: Directories,
        checksums: Checksums | None,
        alignment: int,
        namespaces: Sequence[Namespace],
        own_handle: aio_handle | None,
    ) -> None:
        self._handle = handle
        self._own_handle = own_handle
        self._directories = directories
        self._alignment = alignment
        self._namespaces = list(namespaces)
        self._process = os.getpid()
        self._background = Background()
        self._transfers = RowTransfers(handle, directories, checksums, self._background)
        self._records = Records(self._give_back)
        self._counts = Counts()
        self._completions = Completions()
        self._closing = threading.Lock()
        self._no_more = False
        self._cleaned = False
        self._abandoned = False
        _open_cores.add(self)

    # ---- operations: Ctrl-C would leave them registered, and not started ----

    @deferred_signals()
    def put(self, name: str, tensors: Tensors, in_place: bool) -> StoreFuture:
        self._require_process()
        if not isinstance(name, str):
            raise TypeError(f"name is a {type(name).__name__}, but must be a str")
        layout = layout_of(tensors, self._alignment)
        values = values_of(tensors)
        operation = self._overwrite(name, layout, values) if in_place else None
        if operation is None:
            self._require_open()
            version = Version(layout, self._directories.allocate(layout.row_bytes, name))
            try:
                operation = self._put(name, version, values)
            except BaseException:
                self._give_back(version)
                raise
        return _started(operation)

    @deferred_signals()
    def get(self, name: str, out: Tensors | None) -> StoreFuture:
        self._require_process()
        with self._records.lock:
            self._require_open()
            record, version = self._records.find(name)
            targets = None if out is None else check_out(out, version.layout, name)
            ready, record.prefetched = record.prefetched, None
            if ready is None or ready.failed():
                operation = self._read(record, version, out, targets)
            else:
                self._counts.prefetch_hits += 1
                if targets is None:
                    return StoreFuture(ready)
                operation = self._operation(_copied(ready, version, out, targets))
        return _started(operation)

    @deferred_signals()
    def prefetch(self, name: str) -> StoreFuture:
        self._require_process()
        with self._records.lock:
            self._require_open()
            record, version = self._records.find(name)
            read = record.prefetched
            if read is None or read.failed():
                read = record.prefetched = self._read(record, version, None, None)
            told = self._operation(_bytes_of(read, version))
        read.advance()
        return _started(told)

    @deferred_signals()
    def delete(self, name: str) -> None:
        self._require_process()
        with self._records.lock:
            self._require_open()
            self._records.delete(name)

    @deferred_signals()
    def flush(self) -> StoreFuture:
        self._require_process()
        with self._records.lock:
            self._require_open()
            operation = self._operation(self._flush_steps(self._records.writers()))
        return _started(operation)

    # ---- questions ----

    @property
    def directories(self) -> list[str]:
        return [files.directory for files in self._directories.segments]

    @property
    def closed(self) -> bool:
        return self._no_more or self._process != os.getpid()

    def names(self) -> list[str]:
        self._require_process()
        with self._records.lock:
            return self._records.names()

    def nbytes(self, name: str) -> int:
        self._require_process()
        with self._records.lock:
            return self._records.find(name)[1].layout.nbytes

    def stats(self) -> StoreStats:
        self._require_process()
        with self._records.lock:
            self._require_open()  # afterwards there are no files to ask about
            names = len(self._records.names())
            stored = sum(version.layout.nbytes for version in self._records.versions())
            prefetched = self._records.prefetched_bytes()
            counts = self._counts.as_dict()
            in_flight = len(self._records.operations)
        try:
            directories = directory_stats(self._directories)
        except FileNotFoundError:
            with self._records.lock:
                self._require_open()  # closed meanwhile: that is what is said
            raise
        return {
            "names": names,
            "stored": stored,
            "allocated": sum(directory["allocated"] for directory in directories),
            "prefetched": prefetched,
            "directories": directories,
            **counts,
            "in_flight": in_flight,
        }

    # ---- the end ----

    def close(self) -> None:
        if self._process != os.getpid():
            return
        with self._records.lock:
            self._no_more = True
            pending = list(self._records.operations)
        for operation in pending:
            operation.wait()
        self._clean_up(wait=True)

    def abandon(self) -> None:
        """Nobody can use the store any more: close it, or leave that to the last operation.

        The garbage collector may call this in any thread at any moment, also inside the lock: so it
        waits for nothing. Whoever holds the lock looks afterwards whether it was abandoned.
        """
        if self._process != os.getpid():
            return
        self._abandoned = self._no_more = True
        if self._records.lock.acquire(blocking=False):
            idle = not self._records.operations
            self._records.lock.release()
            if idle:
                self._clean_up_abandoned()

    def _clean_up_abandoned(self) -> None:
        try:
            self._clean_up(wait=False)
        except OSError as error:
            _logger.error("files of a store that was dropped are left: %s", error)

    def _clean_up(self, wait: bool) -> None:
        """``wait`` also for another thread that is at it. The garbage collector does not: it may
        have come in the middle of that very work.
        """
        if not self._closing.acquire(blocking=wait):
            return
        try:
            if not self._cleaned:
                with deferred_signals():  # half of it would be left by Ctrl-C
                    self._cleaned = True
                    self._let_go(wait)
        finally:
            self._closing.release()

    def _let_go(self, wait: bool) -> None:
        self._background.stop(wait)
        self._completions.stop(wait)
        with self._records.lock:
            self._records.forget_all()
        with ExitStack() as rest:  # all of it is done, whatever fails
            if self._own_handle is not None:
                rest.callback(self._own_handle.close)
            for namespace in reversed(self._namespaces):
                rest.callback(namespace.remove)

    # ---- how operations are made; `lock` means that the caller holds it ----

    def _put(self, name: str, version: Version, values: list[torch.Tensor]) -> Operation:
        records = self._records
        with records.lock:
            self._require_open()
            record = records.record(name)
            return self._write(record, version, values, records.add_put, records.end_put)

    def _overwrite(
        self, name: str, layout: GroupLayout, values: list[torch.Tensor]
    ) -> Operation | None:
        """None where there is nothing of that layout to write over."""
        records = self._records
        with records.lock:
            self._require_open()
            version = records.to_overwrite(name, layout)
            if version is None:
                return None
            record = records.record(name)
            return self._write(
                record, version, values, records.add_overwrite, records.end_overwrite
            )

    def _write(
        self,
        record: Record,
        version: Version,
        values: list[torch.Tensor],
        add: Callable[[Record, Version, Operation], list[Operation]],
        end: Callable[[Record, Version, Operation, BaseException | None], None],
    ) -> Operation:
        """Under the lock. ``add`` says what it has to wait for."""
        after: list[Operation] = []

        def ended(operation: Operation, error: BaseException | None) -> None:
            self._counts.ended(self._counts.writes, version.layout.nbytes, error)
            end(record, version, operation, error)

        operation = self._operation(self._write_steps(version, values, after), ended)
        after += add(record, version, operation)
        return operation

    def _read(
        self,
        record: Record,
        version: Version,
        out: Tensors | None,
        targets: list[torch.Tensor] | None,
    ) -> Operation:
        """Under the lock."""

        def ended(operation: Operation, error: BaseException | None) -> None:
            self._counts.ended(self._counts.reads, version.layout.nbytes, error)
            self._records.end_reader(record, version, operation)

        steps = self._read_steps(version, record.writer, out, targets)
        operation = self._operation(steps, ended)
        self._records.add_reader(record, version, operation)
        return operation

    def _operation(
        self,
        steps: Steps,
        ended: Callable[[Operation, BaseException | None], None] | None = None,
    ) -> Operation:
        """Under the lock, as ``ended`` is."""
        self._completions.start()

        def settled(operation: Operation, error: BaseException | None) -> None:
            with self._records.lock:
                self._records.operations.discard(operation)
                if ended is not None:
                    ended(operation, error)
                idle = not self._records.operations
            if self._abandoned and idle:
                self._clean_up_abandoned()

        operation = Operation(steps, settled, self._completions)
        self._records.operations.add(operation)
        return operation

    def _write_steps(
        self, version: Version, values: list[torch.Tensor], after: list[Operation]
    ) -> Steps:
        yield from after
        yield from self._transfers.write(version, values)
        return version.layout.nbytes

    def _read_steps(
        self,
        version: Version,
        writer: Operation | None,
        out: Tensors | None,
        targets: list[torch.Tensor] | None,
    ) -> Steps:
        if writer is not None:
            yield writer
            error = writer.exception()
            if error is not None:
                raise error
        if version.damage is not None:
            raise SwapError(
                "a put in place has failed half way, so that neither the old content nor the new "
                "one is whole; put the name again"
            ) from version.damage
        if targets is None:
            targets = [new_pinned(spec) for spec in version.layout.specs]
        yield from self._transfers.read(version, targets)
        return version.layout.container(targets) if out is None else out

    def _flush_steps(self, writers: list[Operation]) -> Steps:
        yield from writers
        synced = self._background.submit(self._sync)
        yield synced
        synced.result()

    def _sync(self) -> None:
        for files in self._directories.segments:
            for path in list(files.paths):
                self._handle.fsync(path)

    def _give_back(self, version: Version) -> None:
        self._directories.free(version.places)

    def _require_process(self) -> None:
        """Before any lock: another thread may have held it at the fork."""
        if self._process != os.getpid():
            raise RuntimeError(
                "the store belongs to the process that forked this one; make another here"
            )

    def _require_open(self) -> None:
        if self._no_more:
            raise RuntimeError("the store is closed; make another")


def _started(operation: Operation) -> StoreFuture:
    operation.advance()
    return StoreFuture(operation)


def _copied(
    ready: Operation, version: Version, out: Tensors | None, targets: list[torch.Tensor]
) -> Steps:
    """What was prefetched, in the caller's tensors."""
    yield ready
    with torch.inference_mode():
        for target, source in zip(targets, values_of(ready.result()), strict=True):
            target.copy_(source)
    return out


def _bytes_of(read: Operation, version: Version) -> Steps:
    yield read
    read.result()
    return version.layout.nbytes


_open_cores: weakref.WeakSet[StoreCore] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for core in list(_open_cores):
        try:
            core.close()
        except OSError as error:
            _logger.error("files of a store are left: %s", error)
