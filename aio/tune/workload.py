"""The work that is measured: a file in each directory, moved as a whole by one handle."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from _deepnvme import io as _io
from aio.drives import mount_of
from aio.handle import aio_handle
from aio.measure.files import drop_cache, prepare_file
from aio.measure.harness import BenchError, Sample, stopwatch
from aio.measure.room import check_disk, check_memory
from aio.measure.sizes import format_size
from aio.measure.transfers import bytes_by_path, in_words, moved_since, pinned
from aio.options import HandleOptions
from aio.pin_handle import pin_handle
from pinned_manager import PinError

DIRECTIONS = ("read", "write")
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")
PERCENTILES = ("p50", "p90", "p99", "p999", "max")


@dataclass(frozen=True)
class Run(Sample):
    """A sample with the latencies of its transfers, in seconds, by the names of PERCENTILES."""

    latency: Mapping[str, float] = field(default_factory=dict)


class Workload:
    """Moves ``nbytes`` (changed by resize()) of every directory's file, in either direction.

    The files have no name: whatever ends the program, the kernel removes them.
    """

    def __init__(
        self, files: Sequence[IO[bytes]], buffers: Sequence[torch.Tensor], loops: int, memory: str
    ) -> None:
        self._files = files
        self._buffers = buffers
        self.loops = loops
        self.memory = memory
        self.nbytes = buffers[0].nbytes
        self.modes = [self._mode_of(file) for file in files]

    @property
    def in_memory(self) -> bool:
        """Whether a file is on a file system that has no drive."""
        return any(mode.startswith("in memory") for mode in self.modes)

    @property
    def moved(self) -> int:
        """Bytes that one run moves."""
        return self.nbytes * len(self._files) * self.loops

    def resize(self, nbytes: int) -> None:
        """Move this many bytes of each file from now on: no more than it has."""
        self.nbytes = nbytes

    def paths(self) -> list[str]:
        """Names by which another program can open the files, while this one runs."""
        return [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in self._files]

    def run(self, direction: str, options: HandleOptions, loops: int | None = None) -> Run:
        """One timed run, of ``loops`` passes over the files instead of the usual number.

        Raises AioError, and BenchError where bytes are missing.
        """
        loops = loops or self.loops
        wanted = self.nbytes * len(self._files) * loops
        reading = direction == "read"
        with aio_handle(**options.as_dict()) as handle:
            move = handle.pread_many if reading else handle.pwrite_many
            # Untimed: the first transfers of a handle register its buffers.
            move(self._items(min(self.nbytes, options.block_size * options.intra_op_parallelism)))
            items = self._items(self.nbytes)
            for path in self.paths():
                drop_cache(Path(path))
            before = bytes_by_path(handle)
            with stopwatch() as watch:
                completed = sum(move(items) for _ in range(loops))
                if not reading and "page cache" in self.modes:
                    for file in self._files:
                        handle.fsync(file.fileno())  # else memory is measured, not the drive
            moved = moved_since(handle, before)
            latency = handle.stats()["latency"]
        if sum(moved.values()) != wanted:
            raise BenchError(f"{sum(moved.values())} bytes of {wanted} were moved: {options}")
        return Run(
            seconds=watch.seconds,
            nbytes=wanted,
            cpu_seconds=watch.cpu_seconds,
            operations=completed,
            mode=in_words(moved),
            p50=latency["p50"],
            p99=latency["p99"],
            latency={name: latency[name] for name in PERCENTILES},  # type: ignore[literal-required]
        )

    def describe(self) -> str:
        """What is measured, for whoever reads the figures."""
        ways = " and ".join(dict.fromkeys(self.modes))
        if "page cache" in self.modes:
            ways += ", with fsync after writing"
        size = format_size(self.nbytes)
        return f"{size} of each file, {self.memory}; {ways}; writes overwrite allocated blocks"

    def _items(self, nbytes: int) -> list[Any]:
        files = zip(self._buffers, self._files, strict=True)
        return [(buffer[:nbytes], file.fileno()) for buffer, file in files]

    def _mode_of(self, file: IO[bytes]) -> str:
        if _io.file_alignment(file.fileno())["direct"]:
            return "past the page cache (O_DIRECT)"
        kind, _ = mount_of(f"/proc/self/fd/{file.fileno()}")
        return f"in memory ({kind})" if kind in MEMORY_FILE_SYSTEMS else "page cache"


def check_room(directories: Sequence[str], nbytes: int) -> None:
    """Refuse what has no room: ``nbytes`` for each directory, on its drive and in memory.

    Raises BenchError, or OSError for a directory that cannot be used, before anything is written.
    """
    check_disk((place, nbytes) for place in directories)
    in_memory = sum(mount_of(place)[0] in MEMORY_FILE_SYSTEMS for place in directories)
    check_memory(nbytes * (len(directories) + in_memory))


@contextmanager
def prepared(
    directories: Sequence[str],
    nbytes: int,
    devices: Sequence[torch.device] | None,
    loops: int,
    seconds: float,
) -> Iterator[Workload]:
    """Files of up to ``nbytes``, as many as can be written in about ``seconds``, and buffers.

    Buffers are on ``devices``, one for each directory in turn, or page-locked; ordinary memory
    where that much cannot be locked.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(_unnamed_file(place)) for place in directories]
        nbytes = _prepare(files, nbytes, seconds)
        memory = "page-locked memory"
        if devices is not None:
            memory = f"memory of {' and '.join(sorted({str(device) for device in devices}))}"
            buffers = [
                torch.ones(nbytes, dtype=torch.uint8, device=devices[index % len(devices)])
                for index in range(len(files))
            ]
        else:
            try:
                with ExitStack() as attempt:  # all or none
                    buffers = [attempt.enter_context(pinned(pin_handle(), nbytes)) for _ in files]
                    stack.push(attempt.pop_all())
            except PinError as error:
                memory = f"ordinary memory ({error})"
                buffers = [torch.ones(nbytes, dtype=torch.uint8) for _ in files]
        yield Workload(files, buffers, loops, memory)


def _unnamed_file(directory: str) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=directory, buffering=0)


def _prepare(files: Sequence[IO[bytes]], nbytes: int, seconds: float) -> int:
    """Fill every file with the same number of bytes, which is returned."""
    first = min(nbytes, 32 << 20)
    with stopwatch() as watch:
        for file in files:
            prepare_file(_path(file), first)
    affordable = int(first * seconds / watch.seconds) >> 20 << 20
    nbytes = max(first, min(nbytes, affordable))
    if nbytes > first:
        for file in files:
            prepare_file(_path(file), nbytes)
    return nbytes


def _path(file: IO[bytes]) -> Path:
    return Path(f"/proc/self/fd/{file.fileno()}")
