"""The first write of a file, as a checkpoint does it: blocks are allocated while the bytes move.

No target: it is here so that the overwrites of `large_tensor` are not taken for this.
"""

from __future__ import annotations

from aio.measure import fio
from aio.measure.harness import run_rounds
from aio.measure.transfers import pinned

from . import ours, python_peer
from .conditions import fresh
from .context import Context
from .layout import Piece
from .results import Result

TITLE = "First write of a file"


def run(context: Context) -> Result:
    """--size bytes of pinned memory into a file that is not there, once a round."""
    result = Result("fresh_write", TITLE)
    path = context.folder / "fresh.bin"
    with ours.handle(context) as handle, pinned(handle, context.size) as tensor:
        job = fio.Job(
            "write",
            # Later arguments win. fio would else allocate the file before it starts its clock.
            (*fio.one_file(path, context.size), "--allow_file_create=1", "--fallocate=none"),
            context.size,
            depth=context.queue_depth,
            mode=context.fio_mode,
            kernel_workers=context.on_tmpfs,
        )
        contestants = [
            ours.whole("aio pinned", handle, Piece(tensor, path), False, context, 1),
            *fio.contestants(job, 1, context.quick),
            python_peer.large(path, tensor, False, context),
        ]
        if context.deepspeed is not None:
            contestants.append(
                context.deepspeed.contestant(
                    "DeepSpeed pinned", 1, "large", context.fio_mode,
                    path=str(path), nbytes=context.size, reading=False, memory="pinned",
                )
            )  # fmt: skip
        else:
            result.missing["DeepSpeed"] = context.deepspeed_missing
        contestants = [fresh(contestant, path) for contestant in contestants]
        series = run_rounds(contestants, context.rounds, context.progress)
    work = f"write {context.size / 2**20:.0f} MiB, 1 MiB blocks, no fsync"
    result.add(work, "fresh file", series, fio.best(series))
    return result
