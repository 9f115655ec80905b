"""One process of the soak: rounds of random requests on its own files, each checked to the byte."""

from __future__ import annotations

import errno
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aio

LARGEST = 3 << 20
FILE_BYTES = 8 << 20
KINDS = ("plain", "pinned", "odd address", "strided", "transposed", "bytes")
# What may be wrong on purpose: these are expected, and counted.
NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@dataclass
class Tally:
    """What was done and seen; sums over processes."""

    operations: int = 0
    nbytes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.operations += other.operations
        self.nbytes += other.nbytes
        self.faults += other.faults
        self.errors += other.errors
        self.differences += other.differences


class FileAndModel:
    """A file, and what it must hold; after a failed write some of it may be old or new bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = np.zeros(0, dtype=np.uint8)
        self.path.touch()

    def wrote(self, offset: int, data: np.ndarray[Any, Any]) -> None:
        end = offset + len(data)
        if len(data) and end > len(self.bytes):
            self.bytes = np.concatenate(
                [self.bytes, np.zeros(end - len(self.bytes), dtype=np.uint8)]
            )
        self.bytes[offset:end] = data

    def failed_to_write(self, pieces: list[tuple[int, np.ndarray[Any, Any]]]) -> str | None:
        """Look at what failed writes have left, and take it over; a word if it is not allowed."""
        found = np.fromfile(self.path, dtype=np.uint8)
        longest = max([len(self.bytes), *(offset + len(data) for offset, data in pieces)])
        if not len(self.bytes) <= len(found) <= longest:
            return f"size {len(found)} after a failed write"
        old = np.zeros(longest, dtype=np.uint8)
        old[: len(self.bytes)] = self.bytes
        new = old.copy()
        for offset, data in pieces:
            new[offset : offset + len(data)] = data
        same = (found == old[: len(found)]) | (found == new[: len(found)])
        if not bool(same.all()):
            return f"byte {int(np.argmin(same))} is neither old nor new after a failed write"
        self.bytes = found
        return None


class Load:
    """Random requests through a few handles of random shape, on some files of one directory."""

    def __init__(self, directory: Path, small: Path | None, seed: int) -> None:
        self.draw = random.Random(seed)
        self.noise = np.random.default_rng(seed)
        self.tally = Tally()
        # The last file is on the drive that fills up, where there is one.
        places = [directory, directory, directory, small or directory]
        self.files = [FileAndModel(place / f"{seed}.{n}") for n, place in enumerate(places)]
        self.handles: list[Any] = []

    def round(self) -> None:
        """New handles now and then; a fault now and then; a batch; all of it verified."""
        if not self.handles or self.draw.random() < 0.1:
            self.renew_handles()
        file = self.draw.choice(self.files)
        fault = self.draw.choice([self.calm, self.calm, self.calm, self.limit, self.cut])
        with fault(file):
            if self.draw.random() < 0.6:
                self.write_batch(file)
            else:
                self.read_batch(file)
        self.compare(file)
        if len(self.files[-1].bytes) and self.draw.random() < 0.1:
            self.start_over(self.files[-1])

    def renew_handles(self) -> None:
        self.close()
        for backend in aio.available_backends():
            self.handles.append(
                aio.aio_handle(
                    block_size=self.draw.choice([4096, 65536, 1 << 20, 100_000]),
                    queue_depth=self.draw.choice([1, 4, 32]),
                    single_submit=self.draw.random() < 0.2,
                    overlap_events=self.draw.random() < 0.8,
                    intra_op_parallelism=self.draw.choice([1, 2, 3]),
                    backend=backend,
                )
            )

    def close(self) -> None:
        """Close the handles; nothing may be left that nobody has heard of."""
        for handle in self.handles:
            handle.close()
        self.handles = []

    # ---- faults ----

    @contextmanager
    def calm(self, file: FileAndModel) -> Iterator[None]:
        yield

    @contextmanager
    def limit(self, file: FileAndModel) -> Iterator[None]:
        """Files may not grow past a limit."""
        self.tally.faults["RLIMIT_FSIZE"] += 1
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.draw.randrange(FILE_BYTES), before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    @contextmanager
    def cut(self, file: FileAndModel) -> Iterator[None]:
        """The file is cut; what lies beyond can no longer be read."""
        self.tally.faults["truncated"] += 1
        size = self.draw.randrange(len(file.bytes) + 1)
        with file.path.open("r+b") as opened:
            opened.truncate(size)
        file.bytes = file.bytes[:size].copy()
        yield

    def start_over(self, file: FileAndModel) -> None:
        """Give the room of the small drive back."""
        self.tally.faults["deleted"] += 1
        file.path.unlink()
        file.__init__(file.path)  # type: ignore[misc]

    # ---- requests ----

    def memory(self, handle: Any, nbytes: int) -> torch.Tensor | bytearray:
        kind = self.draw.choice(KINDS)
        if kind == "bytes":
            return bytearray(nbytes)
        if kind == "pinned":
            pinned: torch.Tensor = handle.new_cpu_locked_tensor(nbytes, torch.empty(0).byte())
            return pinned
        if kind == "odd address":
            return torch.empty(nbytes + 1, dtype=torch.uint8)[1:]
        if kind == "strided":
            return torch.empty(nbytes, 3, dtype=torch.uint8)[:, 1]
        if kind == "transposed":
            return torch.empty(4, nbytes // 4, dtype=torch.uint8).t()
        return torch.empty(nbytes, dtype=torch.uint8)

    def pieces(self, end: int) -> list[tuple[int, int]]:
        """Disjoint (offset, nbytes) within `end`, in random order: overlaps have no order."""
        count = self.draw.choice([1, 2, 5, 20])
        edges = sorted(self.draw.randrange(end + 1) for _ in range(2 * count))
        made = [
            (start, min(stop - start, LARGEST) // 4 * 4)
            for start, stop in zip(edges[::2], edges[1::2], strict=True)
        ]
        self.draw.shuffle(made)
        return made

    def write_batch(self, file: FileAndModel) -> None:
        handle = self.draw.choice(self.handles)
        items = []
        for offset, nbytes in self.pieces(FILE_BYTES):
            data = self.noise.integers(0, 256, nbytes, dtype=np.uint8)
            buffer = self.memory(handle, nbytes)
            flat_view(buffer)[...] = data.reshape(flat_view(buffer).shape)
            items.append((buffer, file.path, offset, data))
        failed = self.carry_out(handle, "write", [item[:3] for item in items])
        for index, (_, _, offset, data) in enumerate(items):
            if index not in failed:
                file.wrote(offset, data)
        pieces = [(items[index][2], items[index][3]) for index in failed]
        if pieces and (problem := file.failed_to_write(pieces)):
            self.differ(file, problem)
        for buffer, _, _, data in items:
            if not np.array_equal(flat_view(buffer).reshape(-1), data):
                self.differ(file, "a source was changed")

    def read_batch(self, file: FileAndModel) -> None:
        handle = self.draw.choice(self.handles)
        beyond = 1000 if self.draw.random() < 0.1 else 0
        items = []
        for offset, nbytes in self.pieces(len(file.bytes) + beyond):
            items.append((self.memory(handle, nbytes), file.path, offset))
        failed = self.carry_out(handle, "read", items)
        for index, (buffer, _, offset) in enumerate(items):
            found = flat_view(buffer).reshape(-1)
            expected = file.bytes[offset : offset + len(found)]
            whole = len(expected) == len(found)
            refused = index in failed and len(found) > 0  # no bytes beyond the end: either is right
            if whole and (refused or not np.array_equal(found, expected)):
                self.differ(file, f"read of {len(found)} bytes at {offset}")
            if not whole and index not in failed and len(found):
                self.differ(file, f"a read beyond the end succeeded at {offset}")

    def carry_out(self, handle: Any, way: str, items: list[Any]) -> set[int]:
        """Move them in one of the ways of the interface; the indices of those that failed."""
        style = self.draw.choice(["sync", "async", "futures", "many"])
        self.tally.operations += len(items)
        failed: set[int] = set()

        def attempt(call: Callable[..., Any], *arguments: Any) -> Any:
            try:
                return call(*arguments)
            except aio.AioError as error:
                return error

        if style == "many":
            outcomes: list[Any] = [attempt(getattr(handle, f"p{way}_many"), items)]
        elif style == "sync":
            outcomes = [attempt(getattr(handle, f"sync_p{way}"), *item) for item in items]
        elif style == "async":
            outcomes = [attempt(getattr(handle, f"async_p{way}"), *item) for item in items]
            outcomes.append(attempt(handle.wait))
        else:
            started = [attempt(getattr(handle, f"submit_p{way}"), *item) for item in items]
            outcomes = [
                one if isinstance(one, aio.AioError) else attempt(one.result) for one in started
            ]
        by_place = {(item[2], memory_bytes(item[0])): n for n, item in enumerate(items)}
        for outcome in outcomes:
            for error in getattr(outcome, "failures", ()):
                failed.add(by_place[error.offset, error.nbytes])
                name = errno.errorcode.get(error.errno, str(error.errno))
                self.tally.errors[name] += 1
                if error.errno not in (NO_ROOM if way == "write" else (errno.ENODATA,)):
                    self.tally.differences.append(f"unexpected: {error}")
        moved = sum(memory_bytes(item[0]) for n, item in enumerate(items) if n not in failed)
        self.tally.nbytes += moved
        return failed

    def compare(self, file: FileAndModel) -> None:
        if not np.array_equal(np.fromfile(file.path, dtype=np.uint8), file.bytes):
            self.differ(file, "the file is not what was written")
            file.bytes = np.fromfile(file.path, dtype=np.uint8)

    def differ(self, file: FileAndModel, what: str) -> None:
        self.tally.differences.append(f"{file.path}: {what}")


def flat_view(buffer: torch.Tensor | bytearray) -> np.ndarray[Any, Any]:
    """The buffer's elements, in row-major order, to read and to fill."""
    if isinstance(buffer, bytearray):
        return np.frombuffer(buffer, dtype=np.uint8)
    return buffer.numpy()


def memory_bytes(buffer: torch.Tensor | bytearray) -> int:
    return len(buffer) if isinstance(buffer, bytearray) else buffer.nbytes


def work(directory: Path, small: Path | None, seed: int, seconds: float, report: Any) -> None:
    """Rounds for `seconds`, at least one; a Tally to `report` after each, and None last."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when the end is
    torch.set_num_threads(1)
    load = Load(directory, small, seed)
    until = time.monotonic() + seconds
    try:
        while True:
            load.tally = Tally()
            load.round()
            report.put(load.tally)
            if time.monotonic() >= until:
                break
        load.close()
    finally:
        report.put(None)
