"""An optimizer state of tensors from 16 KiB to 1 MiB in one file: reads and writes interleaved."""

from __future__ import annotations

import random
from typing import Any

import torch

from aio.measure import fio
from aio.measure.files import prepare_file
from aio.measure.harness import Contestant, run_rounds
from aio.measure.transfers import pinned

from . import ours
from .context import Context
from .layout import Piece
from .results import Result, at_least

TITLE = "Optimizer state, interleaved reads and writes"
OURS = "aio async + wait"
SIZES = tuple(2**exponent for exponent in range(14, 21))
# Per cent of the requests of each size; the same for both sides.
SHARES = (15, 15, 14, 14, 14, 14, 14)


def run(context: Context) -> Result:
    """Every other tensor is read, the others written; fio does rw=rw with the same sizes."""
    result = Result("mixed_state", TITLE)
    sizes = _sizes(context.size)
    total = sum(sizes)
    path = prepare_file(context.folder / "state.bin", total)
    with ours.handle(context) as handle, pinned(handle, total) as memory:
        pieces, offset = [], 0
        for nbytes in sizes:
            pieces.append(Piece(memory[offset : offset + nbytes], path, offset))
            offset += nbytes
        split = ":".join(
            f"{size // 1024}k/{share}" for size, share in zip(SIZES, SHARES, strict=True)
        )
        job = fio.Job(
            "rw", (*fio.one_file(path, total), f"--bssplit={split}"), total,
            depth=context.queue_depth, mode=context.fio_mode, tolerance=0.02,
            kernel_workers=context.on_tmpfs,
        )  # fmt: skip
        contestants = [
            _interleaved(context, handle, pieces),
            *fio.contestants(job, context.attempts, context.quick),
        ]
        series = run_rounds(contestants, context.rounds, context.progress)
    best = fio.best(series)
    mean = total / len(sizes) / 1024
    work = f"{len(sizes)} tensors of 16 KiB to 1 MiB, mean {mean:.0f} KiB"
    result.add(work, "half read, half overwritten", series, best)
    what = f"mixed reads and writes, {context.medium}"
    result.verdicts.append(at_least(what, series[OURS], best, 0.95, "of fio rw=rw"))
    return result


def _sizes(total: int) -> list[int]:
    """A shuffled list of tensor sizes in fio's shares, adding up to about `total`."""
    choose = random.Random(11)
    unit = [size for size, share in zip(SIZES, SHARES, strict=True) for _ in range(share)]
    sizes = unit * max(1, round(total / sum(unit)))
    choose.shuffle(sizes)
    return sizes


def _interleaved(context: Context, handle: Any, pieces: list[Piece]) -> Contestant:
    requests: list[tuple[Any, torch.Tensor, str, int]] = [
        (
            handle.async_pread if number % 2 == 0 else handle.async_pwrite,
            piece.tensor,
            str(piece.path),
            piece.offset,
        )
        for number, piece in enumerate(pieces)
    ]

    def transfer() -> int:
        for submit, tensor, path, offset in requests:
            submit(tensor, path, offset)
        return int(handle.wait())

    run = ours.Runner(handle, pieces, transfer, context)
    return Contestant(OURS, run, context.attempts, warm_up=run)
