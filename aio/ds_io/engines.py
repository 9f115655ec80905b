"""What moves the bytes in one process: requests of a handle. torch_engine.py has the other kind.

An engine does three things for each loop: prepare (untimed), transfer (timed) and account, which
says how the bytes went and raises BenchError where they are not all there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch

import aio
from aio.ds_io.buffers import describe, host_buffer, transfer_buffer
from aio.ds_io.compare import compare_file
from aio.ds_io.options import BASIC, Options
from aio.measure.files import drop_cache, prepare_file, resident_share
from aio.measure.harness import BenchError
from aio.measure.transfers import bytes_by_path, moved_since
from pinned_manager import empty_cache


class Engine(ABC):
    """The files and the tensor of one process, and their transfers.

    What it opens is closed, and memory given back, by the end of `stack`.
    """

    def __init__(self, options: Options, rank: int, folder: Path, stack: ExitStack) -> None:
        self._options = options
        stem = f"_aio_{options.direction}_{options.io_size}.pt.{rank}"
        self._paths = [folder / f"{stem}_{number}" for number in range(options.files)]
        self._tensor = stack.enter_context(transfer_buffer(options, options.devices[rank]))
        self.memory = describe(self._tensor)
        if options.reading:
            for path in self._paths:
                self._make(path)

    def path(self, loop: int) -> Path:
        """The file of a loop, counted from 0 with the warm-up."""
        return self._paths[loop % len(self._paths)]

    def prepare(self, loop: int) -> str:
        """Make a loop's file what it should be: "existing" without cache, "fresh", "overwrite"."""
        path = self.path(loop)
        if self._options.reading:
            drop_cache(path)
            self._spoil()
            return "existing"
        if self._options.fresh_files:
            path.unlink(missing_ok=True)
        if self._options.validate:
            self._spoil()  # so that what an earlier loop left in the file cannot pass
        return "overwrite" if path.exists() else "fresh"

    def cached(self, loop: int) -> float | None:
        """The share of the file to be read that the page cache has, from 0 to 1."""
        return resident_share(self.path(loop)) if self._options.reading else None

    @abstractmethod
    def transfer(self, loop: int) -> None:
        """Move the tensor; on return its bytes are in memory, or past the page cache."""

    @abstractmethod
    def account(self, loop: int) -> dict[str, int]:
        """Bytes of the tensor that the last transfer moved, by path. Raises if it was not all."""

    @abstractmethod
    def check(self, loop: int) -> None:
        """Compare the tensor with the file by a read of its own. Raises BenchError."""

    @abstractmethod
    def latency(self) -> Mapping[str, object] | None:
        """Of single transfers, in seconds, over all loops so far; None where nobody counts them."""

    def _make(self, path: Path) -> None:
        prepare_file(path, self._options.io_size)

    def _spoil(self) -> None:
        if self._options.validate:
            self._tensor.bitwise_not_()


class HandleEngine(Engine):
    """aio_handle and aio_basic: requests of an aio_handle."""

    def __init__(self, options: Options, rank: int, folder: Path, stack: ExitStack) -> None:
        super().__init__(options, rank, folder, stack)
        self._handle = open_handle(options, stack)
        self._before: dict[str, int] = {}

    def prepare(self, loop: int) -> str:
        state = super().prepare(loop)
        if self._options.slow_bounce_buffer:
            empty_cache()  # or the first loop alone would page-lock
        self._before = bytes_by_path(self._handle)
        return state

    def transfer(self, loop: int) -> None:
        path = str(self.path(loop))
        if self._options.gpu and self._options.slow_bounce_buffer:
            by_accelerator = self._options.use_accelerator_pin_memory
            with host_buffer(self._options.io_size, by_accelerator) as bounce:
                if not self._options.reading:
                    bounce.copy_(self._tensor)
                self._move(bounce, path)
                if self._options.reading:
                    self._tensor.copy_(bounce)
        else:
            self._move(self._tensor, path)
        if not self._options.reading:
            through_cache = moved_since(self._handle, self._before)["buffered"] > 0
            if through_cache or self._options.fsync:
                self._handle.fsync(path)

    def _move(self, tensor: torch.Tensor, path: str) -> None:
        reading = self._options.reading
        if self._options.engine == BASIC:
            call = self._handle.sync_pread if reading else self._handle.sync_pwrite
            done = call(tensor, path)
        else:
            start = self._handle.async_pread if reading else self._handle.async_pwrite
            start(tensor, path)
            done = self._handle.wait()
        if done != 1:
            raise BenchError(f"{path}: {done} operations completed of 1")

    def account(self, loop: int) -> dict[str, int]:
        moved, wanted = moved_since(self._handle, self._before), self._options.io_size
        if sum(moved.values()) != wanted:
            raise BenchError(
                f"{self.path(loop)}: {sum(moved.values())} of {wanted} bytes completed"
            )
        return moved

    def check(self, loop: int) -> None:
        compare_file(self._tensor, self.path(loop))

    def latency(self) -> Mapping[str, object] | None:
        return self._handle.stats()["latency"]


def open_handle(options: Options, stack: ExitStack) -> aio.aio_handle:
    """The handle that the options describe, open until `stack` ends."""
    return stack.enter_context(
        aio.aio_handle(
            options.block_size,
            options.queue_depth,
            options.single_submit,
            not options.sequential_requests,
            options.io_parallel,
            backend=options.backend,
        )
    )
