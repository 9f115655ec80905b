"""Throughput over the size of a transfer, with one in flight and with many.

No target: it shows where the depth of a queue matters. `curves.py` draws it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from aio.measure import fio
from aio.measure.files import prepare_file
from aio.measure.harness import run_rounds
from aio.measure.sizes import format_size
from aio.measure.transfers import pinned

from . import ours
from .context import Context
from .layout import Piece
from .results import Result

TITLE = "Throughput over block size and depth"
BLOCK_SIZES = tuple(4096 << shift for shift in range(0, 12, 2))  # 4 KiB to 4 MiB
_TRANSFERS = 4096  # of a run, so that those with small blocks end too


def run(context: Context) -> Result:
    """One pinned tensor in blocks of each size, at depth 1 and at the usual one, beside fio."""
    result = Result("block_sizes", TITLE)
    path = prepare_file(context.folder / "blocks.bin", context.size)
    with ours.handle(context) as owner, pinned(owner, context.size) as tensor:
        for reading in (True, False):
            for block_size in BLOCK_SIZES[::4] if context.quick else BLOCK_SIZES:
                for depth in (1, context.queue_depth):
                    settings = dataclasses.replace(
                        context, block_size=block_size, queue_depth=depth
                    )
                    _point(settings, result, path, tensor, reading)
    return result


def _point(
    context: Context, result: Result, path: Path, tensor: torch.Tensor, reading: bool
) -> None:
    nbytes = min(context.size, context.block_size * _TRANSFERS)
    direction = "read" if reading else "write"
    job = fio.Job(
        direction, fio.one_file(path, nbytes), nbytes, str(context.block_size),
        depth=context.queue_depth, mode=context.fio_mode, kernel_workers=context.on_tmpfs,
    )  # fmt: skip
    with ours.handle(context) as handle:
        piece = Piece(tensor[:nbytes], path)
        contestants = [
            ours.whole("aio pinned", handle, piece, reading, context, context.attempts),
            *fio.contestants(job, context.attempts, context.quick),
        ]
        series = run_rounds(contestants, context.rounds, context.progress)
    work = f"{direction}, {format_size(context.block_size)} blocks, depth {context.queue_depth}"
    settings = {"block_size": context.block_size, "queue_depth": context.queue_depth}
    result.add(
        work, "existing file" if reading else "overwrite", series, fio.best(series),
        {"direction": direction, **settings},
    )  # fmt: skip
