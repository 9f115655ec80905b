"""Operations to run while things go wrong, and a model of bytes that says what each may have done.

No two operations share a byte of a file, so that every transfer is of one operation; where an
operation may move a byte, that byte differs before and after, so that every move shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

import aio
from support.buffers import pattern
from support.layouts import Memory, MemoryDraw, dense_layouts, memories, strided_layouts

SIZES = st.one_of(
    st.sampled_from([1, 511, 512, 4096, 4097, 12288, 65537, 262144, 1 << 20, (2 << 20) + 12_345]),
    st.integers(1, 300_000),
)
GAPS = st.sampled_from([0, 0, 1, 511, 512, 4096, 10_000])
HOWS = ("sync", "async", "async", "future", "many")

OPTIONS = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([511, 4096, 4097, 16384, 65536, 99_999, 1 << 20]),
        "queue_depth": st.sampled_from([1, 2, 3, 8, 128]),
        "intra_op_parallelism": st.integers(1, 3),
        "single_submit": st.booleans(),
        "overlap_events": st.booleans(),
    }
)


@dataclass(frozen=True)
class Draw:
    """One operation as drawn; it lies `gap` bytes behind the one before it in the same file."""

    write: bool
    how: str
    memory: MemoryDraw
    name: str
    gap: int
    on_page: bool
    exists: bool  # a write goes over bytes that are there, if nothing before it does not
    by_descriptor: bool


DRAWS = st.builds(
    Draw,
    write=st.booleans(),
    how=st.sampled_from(HOWS),
    memory=memories(st.one_of(dense_layouts(SIZES), dense_layouts(SIZES), strided_layouts())),
    name=st.sampled_from(["a", "b"]),
    gap=GAPS,
    on_page=st.booleans(),
    exists=st.booleans(),
    by_descriptor=st.sampled_from([False, False, False, True]),
)
WORKLOADS = st.lists(DRAWS, min_size=1, max_size=6)


@dataclass(eq=False)
class Operation:
    """One operation, and how it ended."""

    draw: Draw
    memory: Memory
    path: Path
    offset: int
    before: bytes = b""  # all of its memory
    after: bytes = b""  # the same once every byte has moved
    data: bytes = b""  # what it moves
    ended: bool = False
    error: aio.AioError | None = None

    @property
    def nbytes(self) -> int:
        return self.memory.layout.nbytes

    @property
    def end(self) -> int:
        return self.offset + self.nbytes

    def succeed(self) -> None:
        assert not self.ended, f"ended twice: {self.draw}"
        self.ended = True

    def fail(self, error: aio.AioError) -> None:
        """`error` must be about this operation and no other."""
        self.succeed()
        assert error.filename == str(self.path)
        assert (error.offset, error.nbytes) == (self.offset, self.nbytes)
        assert 0 <= error.nbytes_done <= error.nbytes
        self.error = error

    @property
    def arrived(self) -> int:
        """How many bytes of a read are in its memory; all those of a write were there before."""
        if self.draw.write:
            return self.nbytes
        return _moved(self.memory.all_bytes(), self.before, self.after)

    def check_memory(self) -> None:
        """All of it is what it was, but for what a read has moved."""
        found = self.memory.all_bytes()
        if self.draw.write:
            assert found == self.before
        elif self.error is None:
            assert found == self.after
        else:
            assert self.arrived >= self.error.nbytes_done, "it says that more was read than arrived"


@dataclass
class FileModel:
    """A file before the operations, and which of them go there."""

    path: Path
    before: bytes = b""
    operations: list[Operation] = field(default_factory=list)

    def check(self) -> None:
        """Bytes that no write may have touched are what they were, and zero in new holes."""
        found = self.path.read_bytes() if self.path.exists() else b""
        writes = [operation for operation in self.operations if operation.draw.write]
        sizes = [len(self.before), *(write.end for write in writes if write.error is None)]
        most = max([len(self.before), *(write.end for write in writes)])
        assert max(sizes) <= len(found) <= most, "the size of the file"
        found = found.ljust(most, b"\0")
        expected = bytearray(self.before.ljust(most, b"\0"))
        for write in writes:
            span = slice(write.offset, write.end)
            if write.error is None:
                expected[span] = write.data
            else:
                moved = _moved(found[span], bytes(expected[span]), write.data, holes=True)
                assert moved >= write.error.nbytes_done, "it says that more was written than is"
                expected[span] = found[span]
        assert found == bytes(expected), "the bytes of the file"


def _moved(found: bytes, before: bytes, after: bytes, holes: bool = False) -> int:
    """How many bytes have become what they should; the others must be as they were."""
    now, was, should = (np.frombuffer(data, np.uint8) for data in (found, before, after))
    moved: npt.NDArray[np.bool_] = now == should
    assert bool(np.all(moved | (now == was))), "bytes that were neither there before nor asked for"
    if not holes:
        moved &= was != should
    return int(np.count_nonzero(moved))


class Workload:
    """Operations on files of `root`, with their memory made and filled."""

    def __init__(self, root: Path, draws: Iterable[Draw]) -> None:
        root = root.resolve()
        self.files = {name: FileModel(root / name) for name in ("a", "b")}
        self.operations: list[Operation] = []
        pinned = aio.pin_handle()
        for draw in draws:
            memory = draw.memory(pinned)
            if memory.layout.nbytes > 0:
                self._place(draw, memory)
        for file in self.files.values():
            self._fill(file)

    def _place(self, draw: Draw, memory: Memory) -> None:
        file = self.files[draw.name]
        offset = max((operation.end for operation in file.operations), default=0) + draw.gap
        if draw.on_page:
            offset = -(-offset // 4096) * 4096
        operation = Operation(draw, memory, file.path, offset)
        file.operations.append(operation)
        self.operations.append(operation)

    def _fill(self, file: FileModel) -> None:
        there = [one.end for one in file.operations if not one.draw.write or one.draw.exists]
        contents = bytearray(pattern(max(there, default=0), len(file.operations)))
        for one in file.operations:
            span = slice(one.offset, min(one.end, len(contents)))
            if one.draw.write:
                one.data = one.memory.gathered()
                one.before = one.memory.all_bytes()
                contents[span] = _inverted(one.data)[: max(0, span.stop - span.start)]
            else:
                one.data = bytes(contents[span])
                one.memory.bytes[:] = np.frombuffer(
                    _inverted(one.memory.scattered(one.data)), np.uint8
                )
                one.before = one.memory.all_bytes()
                one.after = one.memory.scattered(one.data)
        file.before = bytes(contents)
        if there or any(one.draw.by_descriptor for one in file.operations):
            file.path.write_bytes(contents)

    def run(self, handle: Any) -> None:
        """Every operation, to its end."""
        pending: list[Operation] = []
        futures: list[tuple[list[Operation], Any]] = []
        for (how, write), group in groupby(self.operations, lambda o: (o.draw.how, o.draw.write)):
            if how == "many":
                futures += [_submit_many(handle, list(group), write)]
                continue
            for operation in group:
                with _raised([operation]), _name(operation) as name:
                    future = _start(handle, operation, name)
                    if how == "sync":
                        operation.succeed()
                    elif how == "async":
                        pending.append(operation)
                    else:
                        futures.append(([operation], future))
        for operations, future in futures:
            with _raised(operations):
                assert future.result() == sum(one.nbytes for one in operations)
        with _raised(pending):
            assert handle.wait() == len(pending)
        for operation in [*pending, *(one for many, _ in futures for one in many)]:
            if not operation.ended:
                operation.succeed()
        assert handle.wait() == 0
        assert all(operation.ended for operation in self.operations)

    def check(self) -> None:
        """Memory and files hold what the operations that ended so may have left."""
        for operation in self.operations:
            operation.check_memory()
        for file in self.files.values():
            file.check()

    def check_counts(self, handle: Any) -> None:
        """The handle counted every operation once, and no byte twice."""
        stats = handle.stats()
        assert stats["in_flight"] == 0
        for kind, write in (("read", False), ("write", True)):
            mine = [one for one in self.operations if one.draw.write is write]
            moved = sum(stats["bytes"][kind].values())
            done = sum(one.nbytes for one in mine if one.error is None)
            assert done <= moved <= sum(one.nbytes for one in mine)


def _inverted(data: bytes) -> bytes:
    return bytes(~np.frombuffer(data, np.uint8))


class _raised:
    """An AioError of the block ends those of `operations` that it lists, each once."""

    def __init__(self, operations: list[Operation]) -> None:
        self.operations = {(str(one.path), one.offset): one for one in operations}

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, aio.AioError):
            return False
        assert error.failures[0] is error
        for failure in error.failures:
            self.operations.pop((failure.filename, failure.offset)).fail(failure)
        return True


class _name:
    """The file's name, or a descriptor of it that is closed at once."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.descriptor = -1

    def __enter__(self) -> Any:
        if not self.operation.draw.by_descriptor:
            return self.operation.path
        self.descriptor = os.open(self.operation.path, os.O_RDWR)
        return self.descriptor

    def __exit__(self, *_: object) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def _start(handle: Any, operation: Operation, name: Any) -> Any:
    verb = "pwrite" if operation.draw.write else "pread"
    prefix = {"sync": "sync_", "async": "async_", "future": "submit_"}[operation.draw.how]
    return getattr(handle, prefix + verb)(operation.memory.view, name, operation.offset)


def _submit_many(
    handle: Any, operations: list[Operation], write: bool
) -> tuple[list[Operation], Any]:
    submit = handle.submit_pwrite_many if write else handle.submit_pread_many
    items = [(one.memory.view, one.path, one.offset) for one in operations]
    return operations, submit(items)


def still_works(handle: Any, root: Path) -> None:
    """A write and a read, on the calling thread and by the workers, with nothing wrong."""
    path, size = root / "clean", 3 * 4096 + 77
    data = pattern(size, size)
    for synchronous in (True, False):
        path.unlink(missing_ok=True)
        found = bytearray(size)
        if synchronous:
            assert handle.sync_pwrite(data, path) == 1
            assert handle.sync_pread(found, path) == 1
        else:
            assert handle.async_pwrite(data, path) == 0
            assert handle.wait() == 1
            assert handle.async_pread(found, path) == 0
            assert handle.wait() == 1
        assert path.read_bytes() == data == bytes(found)
