"""One large tensor, reading and writing: pinned, plain torch memory, and a slice at base + 1."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch

from aio.measure import fio
from aio.measure.files import prepare_file
from aio.measure.harness import Contestant, Series, run_rounds
from aio.measure.transfers import pinned

from . import ours, python_peer
from .context import Context
from .layout import Piece, touched
from .results import Result, Verdict, at_least, at_most, not_measured

TITLE = "One large tensor"


def run(context: Context) -> Result:
    """1 GiB (--size) of pinned and plain memory against the best fio; slices of a quarter."""
    result = Result("large_tensor", TITLE)
    path = prepare_file(context.folder / "large.bin", context.size)
    with ours.handle(context) as owner:
        with pinned(owner, context.size) as locked:
            tensors = {"pinned": locked, "plain": touched(context.size)}
            for reading in (True, False):
                with ExitStack() as handles:
                    _whole(context, result, handles, path, tensors, reading)
            del tensors
        with pinned(owner, context.size // 4 + 4096) as block:
            for reading in (True, False):
                with ExitStack() as handles:
                    _slices(context, result, handles, path, block, reading)
    return result


def _whole(
    context: Context,
    result: Result,
    handles: ExitStack,
    path: Path,
    tensors: dict[str, torch.Tensor],
    reading: bool,
) -> None:
    direction = "read" if reading else "write"
    contestants = [
        _contestant(f"aio {memory}", handles, Piece(tensor, path), reading, context)
        for memory, tensor in tensors.items()
    ]
    job = fio.Job(
        direction, fio.one_file(path, context.size), context.size,
        depth=context.queue_depth, mode=context.fio_mode,
        kernel_workers=context.on_tmpfs,
    )  # fmt: skip
    contestants += fio.contestants(job, context.attempts, context.quick)
    contestants.append(python_peer.large(path, tensors["pinned"], reading, context))
    contestants += _deepspeed(context, result, path, reading)
    series = run_rounds(contestants, context.rounds, context.progress)
    best = fio.best(series)
    work = f"{direction} {context.size / 2**20:.0f} MiB, 1 MiB blocks"
    result.add(work, "existing file" if reading else "overwrite", series, best)
    result.verdicts += _verdicts(context, direction, series, best)


def _deepspeed(context: Context, result: Result, path: Path, reading: bool) -> list[Contestant]:
    if context.deepspeed is None:
        result.missing["DeepSpeed"] = context.deepspeed_missing
        return []
    arguments = {"path": str(path), "nbytes": context.size, "reading": reading}
    return [
        context.deepspeed.contestant(
            f"DeepSpeed {memory}", context.attempts, "large", mode, memory=memory, **arguments
        )
        for memory, mode in (
            ("pinned", context.fio_mode),
            ("plain", f"{context.fio_mode}, staged copy"),
        )
    ]


def _verdicts(
    context: Context, direction: str, series: dict[str, Series], best: Series
) -> list[Verdict]:
    targets = {"pinned": 0.95 if context.on_tmpfs else 0.97, "plain": 0.95}
    cpu_targets = {"pinned": 0.02, "plain": 0.25}
    verdicts = []
    for memory, target in targets.items():
        entry = series[f"aio {memory}"]
        name = f"{direction}, {memory} memory, {context.medium}"
        verdicts.append(at_least(name, entry, best, target, "of best fio"))
        if not context.on_tmpfs:
            cpu = entry.median_cpu_per_gb()
            verdicts.append(at_most(f"{name}, CPU", cpu, cpu_targets[memory], "s/GB"))
    return verdicts


def _slices(
    context: Context,
    result: Result,
    handles: ExitStack,
    path: Path,
    block: torch.Tensor,
    reading: bool,
) -> None:
    nbytes = context.size // 4
    contestants = [
        _contestant(name, handles, Piece(block[start : start + nbytes], path), reading, context)
        for name, start in (("aio aligned", 0), ("aio base+1", 1))
    ]
    series = run_rounds(contestants, 2 * context.rounds, context.progress)
    aligned, shifted = series["aio aligned"], series["aio base+1"]
    direction = "read" if reading else "write"
    work = f"{direction} {nbytes / 2**20:.0f} MiB slice"
    result.add(work, "existing file" if reading else "overwrite", series, aligned)
    name = f"{direction}, slice at base+1, {context.medium}"
    if context.on_tmpfs:
        result.verdicts.append(not_measured(name, "none on tmpfs", "shown above"))
    else:
        result.verdicts.append(at_least(name, shifted, aligned, 0.8, "of aligned"))


def _contestant(
    name: str, handles: ExitStack, piece: Piece, reading: bool, context: Context
) -> Contestant:
    """With a handle of its own, so that its latencies are its own too."""
    handle = handles.enter_context(ours.handle(context))
    return ours.whole(name, handle, piece, reading, context, context.attempts)
