"""`aio` as a contestant: times a transfer, and has the handle's counts say how the bytes went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import aio
from aio.measure.harness import BenchError, Contestant, Sample, stopwatch
from aio.measure.transfers import bytes_by_path, in_words, moved_since

from .context import Context
from .layout import Check, Piece


def handle(context: Context) -> Any:
    """A handle at the block size and depth that fio gets, with one worker."""
    return aio.aio_handle(
        block_size=context.block_size, queue_depth=context.queue_depth, intra_op_parallelism=1
    )


class Runner:
    """Times `transfer` on a handle, checks sampled bytes, labels the run with its path."""

    def __init__(
        self,
        owner: Any,
        pieces: Sequence[Piece],
        transfer: Callable[[], int],
        context: Context,
        passes: int = 1,
    ) -> None:
        self._handle = owner
        self._transfer = transfer
        self._context = context
        self._passes = passes
        self._operations = len(pieces)
        self._nbytes = sum(piece.tensor.nbytes for piece in pieces)
        self._check = Check(pieces)

    def __call__(self) -> Sample:
        self._check.poison()
        before = bytes_by_path(self._handle)
        completed = 0
        with stopwatch() as watch:
            for _ in range(self._passes):
                completed += self._transfer()
        moved = moved_since(self._handle, before)
        self._refuse_missing(completed, sum(moved.values()))
        self._check()
        latency = self._handle.stats()["latency"]
        return Sample(
            seconds=watch.seconds,
            nbytes=self._nbytes * self._passes,
            cpu_seconds=watch.cpu_seconds,
            operations=completed,
            mode=mode_of(moved, self._context),
            p50=latency["p50"],
            p99=latency["p99"],
        )

    def _refuse_missing(self, completed: int, moved: int) -> None:
        operations, nbytes = self._operations * self._passes, self._nbytes * self._passes
        if completed != operations or moved != nbytes:
            raise BenchError(
                f"aio completed {completed} of {operations} operations, {moved} of {nbytes} bytes"
            )


def mode_of(moved: dict[str, int], context: Context) -> str:
    """How the bytes went, in words."""
    return f"{in_words(moved)} (memory)" if context.on_tmpfs else in_words(moved)


def whole(
    name: str, owner: Any, piece: Piece, reading: bool, context: Context, attempts: int
) -> Contestant:
    """One tensor to or from one file, synchronously."""
    call = owner.sync_pread if reading else owner.sync_pwrite
    path = str(piece.path)
    run = Runner(owner, [piece], lambda: int(call(piece.tensor, path, piece.offset)), context)
    return Contestant(name, run, attempts, warm_up=run)


def many(
    name: str,
    owner: Any,
    pieces: Sequence[Piece],
    reading: bool,
    context: Context,
    attempts: int,
    passes: int = 1,
) -> Contestant:
    """Many tensors in one call of pread_many or pwrite_many."""
    call = owner.pread_many if reading else owner.pwrite_many
    items = [(piece.tensor, str(piece.path), piece.offset) for piece in pieces]
    run = Runner(owner, pieces, lambda: int(call(items)), context, passes)
    return Contestant(name, run, attempts, warm_up=run)
