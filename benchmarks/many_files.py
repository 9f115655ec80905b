"""4,000 tensors of 64 KiB: each an existing file, and all at offsets of one file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from aio.measure import fio
from aio.measure.files import prepare_file, prepare_files
from aio.measure.harness import Contestant, run_rounds
from aio.measure.transfers import pinned

from . import ours
from .context import Context
from .layout import Piece
from .results import Result, at_least, not_measured

TITLE = "Many tensors of 64 KiB"
NBYTES = 64 << 10


def run(context: Context) -> Result:
    """pread_many and pwrite_many into tensors pinned one by one, against fio at the same depth."""
    result = Result("many_files", TITLE)
    count = 500 if context.quick else 4000
    # Memory moves these in tens of milliseconds, and fio's clock counts whole ones.
    passes = 4 if context.on_tmpfs else 1
    paths = prepare_files(context.folder / "many", count, NBYTES)
    single = prepare_file(context.folder / "single.bin", count * NBYTES)
    with ExitStack() as stack:
        owner = stack.enter_context(ours.handle(context))
        tensors = [stack.enter_context(pinned(owner, NBYTES)) for _ in range(count)]
        separate = [Piece(tensor, path) for tensor, path in zip(tensors, paths, strict=True)]
        shared = [Piece(tensor, single, i * NBYTES) for i, tensor in enumerate(tensors)]
        for reading in (True, False):
            direction = "read" if reading else "write"
            job = _nrfiles(context, direction, paths, passes)
            _measure(context, result, separate, job, f"{direction} {count} files", paths)
            job = fio.Job(
                direction, fio.one_file(single, count * NBYTES), count * NBYTES,
                "64k", context.queue_depth, context.fio_mode, passes=passes,
                kernel_workers=context.on_tmpfs,
            )  # fmt: skip
            _measure(context, result, shared, job, f"{direction} {count} offsets of one file", ())
    return result


def _nrfiles(context: Context, direction: str, paths: Sequence[Path], passes: int) -> fio.Job:
    """fio takes file after file; a bound on the open ones keeps its closes in the timed part."""
    arguments = (
        f"--directory={paths[0].parent}",
        "--filename_format=t.$filenum",
        f"--nrfiles={len(paths)}",
        f"--filesize={NBYTES}",
        "--file_service_type=sequential",
        f"--openfiles={2 * context.queue_depth}",
    )
    total = len(paths) * NBYTES
    return fio.Job(
        direction, arguments, total, "64k", context.queue_depth, context.fio_mode,
        passes=passes, kernel_workers=context.on_tmpfs,
    )  # fmt: skip


def _measure(
    context: Context,
    result: Result,
    pieces: Sequence[Piece],
    job: fio.Job,
    work: str,
    paths: Sequence[Path],
) -> None:
    """One comparison; `paths` are given where DeepSpeed does the same work."""
    contestants = fio.contestants(job, context.attempts, context.quick)
    if paths and context.deepspeed is not None:
        contestants.append(_deepspeed(context, job, paths))
    reading = job.direction == "read"
    with ours.handle(context) as handle:
        contestants.append(
            ours.many("aio many", handle, pieces, reading, context, context.attempts, job.passes)
        )
        series = run_rounds(contestants, context.rounds, context.progress)
    best = fio.best(series)
    result.add(work, "existing file" if reading else "overwrite", series, best)
    mine = series["aio many"]
    what = f"{work}, {context.medium}"
    target = "of fio nrfiles" if paths else "of fio 64 KiB"
    result.verdicts.append(at_least(what, mine, best, 0.95, target))
    if not paths:
        return
    if "DeepSpeed" in series:
        result.verdicts.append(at_least(what, mine, series["DeepSpeed"], 1.6, "x DeepSpeed"))
    else:
        result.missing["DeepSpeed"] = context.deepspeed_missing
        missing = "DeepSpeed is missing"
        result.verdicts.append(not_measured(what, ">= 1.6 x DeepSpeed", missing))


def _deepspeed(context: Context, job: fio.Job, paths: Sequence[Path]) -> Contestant:
    if context.deepspeed is None:
        raise ValueError("no DeepSpeed to ask")
    return context.deepspeed.contestant(
        "DeepSpeed", context.attempts, "many", context.fio_mode,
        paths=[str(path) for path in paths],
        nbytes=NBYTES, reading=job.direction == "read", passes=job.passes,
    )  # fmt: skip
