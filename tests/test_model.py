"""Random operations through every engine against a plain bytes model of the files (C-08, D-02)."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aio
from support.buffers import pattern
from support.layouts import OFFSETS, SIZES, Memory, MemoryDraw, memories
from support.sanitizers import examples

NAMES = ("a", "b", "c", "d", "e", "f")

OPTIONS = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([7, 511, 513, 4095, 4096, 4097, 65536, 99_999, 1 << 20]),
        "queue_depth": st.sampled_from([1, 2, 3, 8, 32, 128]),
        "intra_op_parallelism": st.integers(1, 3),
        "single_submit": st.booleans(),
        "overlap_events": st.booleans(),
    }
)


@dataclass(frozen=True)
class Draw:
    """What is drawn for one buffer; `placed` says where it goes in a file of known size."""

    memory: MemoryDraw
    name: str
    offset: int
    inside: bool  # a read that is out of bounds is moved into them
    named_by: str

    def placed(self, size: int, nbytes: int) -> int:
        """The file offset, in a file of `size` bytes."""
        if self.inside and nbytes <= size:
            return self.offset % (size - nbytes + 1)
        return self.offset


DRAWS = st.builds(
    Draw,
    memory=memories(),
    name=st.sampled_from(NAMES),
    offset=OFFSETS,
    inside=st.sampled_from([True, True, True, False]),
    named_by=st.sampled_from(["str", "bytes", "path", "descriptor"]),
)


@dataclass(frozen=True)
class Operate:
    """One request."""

    kind: str
    how: str
    draw: Draw


@dataclass(frozen=True)
class OperateMany:
    """Several requests in one call, waited for there or by its future."""

    kind: str
    later: bool
    draws: list[Draw]


@dataclass(frozen=True)
class Wait:
    """Of the asynchronous operations, or of the futures."""

    futures: bool


@dataclass(frozen=True)
class ReplaceHandle:
    """close(), and a handle with other options."""

    options: dict[str, Any]


KINDS = st.sampled_from(["read", "write"])
OPERATE = st.builds(
    Operate,
    kind=KINDS,
    how=st.sampled_from(["plain", "p", "p async", "sync", "async", "async", "future", "future"]),
    draw=DRAWS,
)
MANY = st.builds(
    OperateMany,
    kind=KINDS,
    later=st.booleans(),
    draws=st.lists(DRAWS, min_size=1, max_size=6),
)
WAIT = st.builds(Wait, futures=st.booleans())
REPLACE = st.builds(ReplaceHandle, options=OPTIONS)
Step = Operate | OperateMany | Wait | ReplaceHandle
# Mostly requests, so that many are in flight when one is waited for.
STEPS = st.integers(0, 19).flatmap(
    lambda roll: OPERATE if roll < 13 else MANY if roll < 16 else WAIT if roll < 19 else REPLACE
)


@dataclass(frozen=True)
class Span:
    """The bytes of a file that an operation reads or writes."""

    kind: str
    name: str
    start: int
    end: int

    def conflicts(self, other: Span) -> bool:
        if self.name != other.name or self.kind == other.kind == "read":
            return False
        return self.start < other.end and other.start < self.end


@dataclass
class Pending:
    """One operation in flight, and what all of its memory must be when it has ended."""

    span: Span
    memory: Memory
    expected: bytes
    future: Any = None  # None: counted by wait()


class Files:
    """Files as bytearrays, and the operations in flight on them."""

    def __init__(self, directory: Path, backend: str, options: dict[str, Any]) -> None:
        self.root = Path(tempfile.mkdtemp(dir=directory))
        self.backend = backend
        self.model: dict[str, bytearray] = {}
        self.durable: dict[str, int] = {}  # sizes with nothing in flight
        self.pending: list[Pending] = []
        self.open_handle(options)

    def create(self, name: str, nbytes: int, seed: int) -> None:
        contents = pattern(nbytes, seed)
        (self.root / name).write_bytes(contents)
        self.model[name] = bytearray(contents)
        self.durable[name] = nbytes

    def run(self, step: Step) -> None:
        if isinstance(step, Operate):
            self.operate(step.kind, step.how, step.draw)
        elif isinstance(step, OperateMany):
            self.operate_many(step.kind, step.later, step.draws)
        elif isinstance(step, ReplaceHandle):
            self.replace_handle(step.options)
        elif step.futures:
            self.collect_futures()
        else:
            self.wait()

    def open_handle(self, options: dict[str, Any]) -> None:
        self.handle: Any = aio.aio_handle(backend=self.backend, **options)

    def replace_handle(self, options: dict[str, Any]) -> None:
        """close() drains: whatever was in flight is done after it."""
        self.handle.close()
        ended, self.pending = self.pending, []
        self._check(ended)
        self.open_handle(options)

    def wait(self) -> None:
        ended = [pending for pending in self.pending if pending.future is None]
        assert self.handle.wait() == len(ended)
        self.pending = [pending for pending in self.pending if pending.future is not None]
        self._check(ended)

    def collect_futures(self) -> None:
        ended = [pending for pending in self.pending if pending.future is not None]
        for pending in ended:
            pending.future.result()
        self.pending = [pending for pending in self.pending if pending.future is None]
        self._check(ended)

    def operate(self, kind: str, how: str, draw: Draw) -> None:
        memory = draw.memory(self.handle)
        nbytes = memory.layout.nbytes
        offset = draw.placed(len(self.model.get(draw.name, b"")), nbytes)
        if kind == "read" and not self._readable(draw.name, offset, nbytes):
            self._expect_refused(how, draw, memory, offset)
            return
        self._settle_before(kind, draw.name, offset, nbytes)
        pending = self._enter(kind, draw.name, offset, memory)
        with Named(self, kind, draw) as name:
            pending.future = self._call(kind, how, memory.view, name, offset)
        if how in ("plain", "p", "sync"):
            self._check([pending])
        else:
            self.pending.append(pending)

    def operate_many(self, kind: str, later: bool, draws: list[Draw]) -> None:
        chosen: list[tuple[str, Memory, int]] = []
        spans: list[Span] = []
        for draw in draws:
            memory = draw.memory(self.handle)
            nbytes = memory.layout.nbytes
            offset = draw.placed(len(self.model.get(draw.name, b"")), nbytes)
            span = Span(kind, draw.name, offset, offset + nbytes)
            if any(span.conflicts(other) for other in spans):
                continue
            if kind == "read" and not self._readable(draw.name, offset, nbytes):
                continue
            spans.append(span)
            chosen.append((draw.name, memory, offset))
        for name, memory, offset in chosen:
            self._settle_before(kind, name, offset, memory.layout.nbytes)
        group = [self._enter(kind, name, offset, memory) for name, memory, offset in chosen]
        items = [(memory.view, self.root / name, offset) for name, memory, offset in chosen]
        if later:
            submit = (
                self.handle.submit_pread_many if kind == "read" else self.handle.submit_pwrite_many
            )
            future = submit(items)
            for pending in group:
                pending.future = future
            self.pending += group
        else:
            many = self.handle.pread_many if kind == "read" else self.handle.pwrite_many
            assert many(iter(items)) == len(items)
            self._check(group)

    def finish(self) -> None:
        self.wait()
        self.collect_futures()

    def remove(self) -> None:
        self.handle.close()
        shutil.rmtree(self.root)

    def _readable(self, name: str, offset: int, nbytes: int) -> bool:
        return name in self.model and (nbytes == 0 or offset + nbytes <= len(self.model[name]))

    def _settle_before(self, kind: str, name: str, offset: int, nbytes: int) -> None:
        """Nothing in flight may overlap in a file, nor decide where the file ends for a read."""
        span = Span(kind, name, offset, offset + nbytes)
        busy = any(span.conflicts(pending.span) for pending in self.pending)
        if busy or (kind == "read" and offset + nbytes > self.durable[name]):
            self.wait()
            self.collect_futures()

    def _enter(self, kind: str, name: str, offset: int, memory: Memory) -> Pending:
        end = offset + memory.layout.nbytes
        expected = memory.all_bytes()
        if kind == "read":
            expected = memory.scattered(bytes(self.model[name][offset:end]))
        else:
            contents = self.model.setdefault(name, bytearray())
            self.durable.setdefault(name, 0)
            if memory.layout.nbytes:
                contents.extend(bytes(max(0, end - len(contents))))
                contents[offset:end] = memory.gathered()
        return Pending(Span(kind, name, offset, end), memory, expected)

    def _call(self, kind: str, how: str, buffer: Any, name: Any, offset: int) -> Any:
        """Make the call, check what it returns, and give back the future of `how == "future"`."""
        handle = self.handle
        if how == "plain":
            function = handle.read if kind == "read" else handle.write
            assert function(buffer, name, False, offset) == 0
        elif how in ("p", "p async"):
            function = handle.pread if kind == "read" else handle.pwrite
            later = how == "p async"
            assert function(buffer, name, False, later, offset) == (0 if later else 1)
        elif how == "sync":
            function = handle.sync_pread if kind == "read" else handle.sync_pwrite
            assert function(buffer, name, offset) == 1
        elif how == "async":
            function = handle.async_pread if kind == "read" else handle.async_pwrite
            assert function(buffer, name, offset) == 0
        else:
            return (handle.submit_pread if kind == "read" else handle.submit_pwrite)(
                buffer, name, offset
            )
        return None

    def _expect_refused(self, how: str, draw: Draw, memory: Memory, offset: int) -> None:
        """A read of no file, or beyond the end of one: an error, and nothing is touched."""
        self.wait()
        self.collect_futures()
        before = memory.all_bytes()
        path = self.root / draw.name
        with pytest.raises(aio.AioError) as caught:
            self._read_and_wait(how, memory.view, path, offset)
        missing = draw.name not in self.model
        assert caught.value.errno == (errno.ENOENT if missing else errno.ENODATA)
        assert caught.value.filename == str(path)
        assert memory.all_bytes() == before
        assert path.exists() is not missing
        assert self.handle.wait() == 0

    def _read_and_wait(self, how: str, buffer: Any, path: Path, offset: int) -> None:
        future = self._call("read", how, buffer, path, offset)
        if future is not None:
            future.result()
        self.handle.wait()

    def _check(self, ended: list[Pending]) -> None:
        for pending in ended:
            assert pending.memory.all_bytes() == pending.expected, pending
            if pending.future is not None:
                assert pending.future.done()
        writing = {pending.span.name for pending in self.pending if pending.span.kind == "write"}
        for name, contents in self.model.items():
            if name not in writing:
                found = (self.root / name).read_bytes()
                assert len(found) == len(contents), name
                assert found == contents, name
                self.durable[name] = len(contents)


class Named:
    """The file as its drawn kind of name; a descriptor is closed once the call has returned."""

    def __init__(self, files: Files, kind: str, draw: Draw) -> None:
        self.path = files.root / draw.name
        self.kind = kind
        self.named_by = draw.named_by
        self.descriptor = -1

    def __enter__(self) -> Any:
        if self.named_by == "descriptor":
            flags = os.O_RDONLY if self.kind == "read" else os.O_RDWR | os.O_CREAT
            self.descriptor = os.open(self.path, flags)
            return self.descriptor
        names = {"str": str(self.path), "bytes": bytes(self.path), "path": self.path}
        return names[self.named_by]

    def __exit__(self, *_: object) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


@settings(max_examples=examples(25))
@given(
    options=OPTIONS,
    sizes=st.fixed_dictionaries({name: st.none() | SIZES | OFFSETS for name in NAMES}),
    steps=st.lists(STEPS, min_size=15, max_size=40),
)
def test_operations_match_the_model(
    directory: Path,
    backend: str,
    options: dict[str, Any],
    sizes: dict[str, int | None],
    steps: list[Step],
) -> None:
    files = Files(directory, backend, options)
    try:
        for name, nbytes in sizes.items():
            if nbytes is not None:
                files.create(name, nbytes, seed=nbytes)
        for step in steps:
            files.run(step)
        files.finish()
    finally:
        files.remove()
