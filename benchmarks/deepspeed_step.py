"""A training step of DeepSpeed's ZeRO-3, states on the directory: its operator against this engine.

Two processes train the same model, in turn, and write the same checkpoints by FastFileWriter.
"""

from __future__ import annotations

import functools
import shutil

from aio.measure.harness import BenchError, Contestant, Sample, Series, compare, run_rounds

from .context import Context
from .deepspeed_peer import DeepSpeedPeer
from .results import Met, Result, Verdict

TITLE = "DeepSpeed, states and checkpoints on the drive"
OWN, OURS = "DeepSpeed's operator", "aio"
PARAMETERS, QUICK_PARAMETERS = 200_000_000, 20_000_000
BUFFER = 64 << 20  # bytes of FastFileWriter's pinned buffer, which it halves
_WORKER = "deepspeed_step_worker.py"


def run(context: Context) -> Result:
    """--size is that of the checkpoint. The first start compiles DeepSpeed's operator."""
    result = Result("deepspeed_step", TITLE)
    if context.deepspeed is None:
        result.missing["DeepSpeed"] = context.deepspeed_missing
        return result
    parameters = QUICK_PARAMETERS if context.quick else PARAMETERS
    needed = 2 * (16 * parameters + context.size)  # states and gradients of both
    if shutil.disk_usage(context.folder).free < needed:
        raise BenchError(f"{context.folder}: needs {needed / 1e9:.1f} GB free")
    workers: dict[str, DeepSpeedPeer] = {}
    try:
        for name, engine in ((OWN, "own"), (OURS, "aio")):
            folder = context.folder / engine
            folder.mkdir()
            context.progress(f"{name}: making the model")
            workers[name] = DeepSpeedPeer(
                context.deepspeed.python,
                _WORKER,
                engine=engine,
                folder=str(folder),
                parameters=parameters,
                block_size=context.block_size,
                depth=context.queue_depth,
            )
        _steps(context, workers, result)
        _checkpoints(context, workers, result)
    finally:
        for worker in workers.values():
            worker.close()
    return result


def _steps(context: Context, workers: dict[str, DeepSpeedPeer], result: Result) -> None:
    losses: dict[str, list[float]] = {name: [] for name in workers}
    counts = set()

    def step(name: str) -> Sample:
        answer = workers[name].ask("step")
        losses[name].append(answer["loss"])
        counts.add(answer["parameters"])
        return Sample(
            answer["seconds"], answer["nbytes"], answer["cpu_seconds"], 1, context.fio_mode
        )

    contestants = [
        Contestant(name, run := functools.partial(step, name), context.attempts, warm_up=run)
        for name in workers
    ]
    series = run_rounds(contestants, context.rounds, context.progress)
    if losses[OWN] != losses[OURS]:
        raise BenchError(f"the losses differ: {losses}")
    (count,) = counts
    work = f"step of {count / 1e6:.0f} M parameters, {12 * count / 1e9:.2f} GB of states"
    result.add(work, "overwrite", series, series[OWN])
    result.verdicts.append(_seconds("seconds of a DeepSpeed step", series, context))


def _checkpoints(context: Context, workers: dict[str, DeepSpeedPeer], result: Result) -> None:
    contestants = [
        worker.contestant(
            name,
            context.attempts,
            "checkpoint",
            context.fio_mode,
            nbytes=context.size,
            buffer=BUFFER,
        )
        for name, worker in workers.items()
    ]
    series = run_rounds(contestants, context.rounds, context.progress)
    work = f"FastFileWriter, {context.size / 1e9:.2f} GB with fsync"
    result.add(work, "fresh file", series, series[OWN])
    result.verdicts.append(_seconds("seconds of a DeepSpeed checkpoint", series, context))


def _seconds(what: str, series: dict[str, Series], context: Context) -> Verdict:
    """Ours over theirs; below 1 is faster."""
    seconds = {name: entry.values(lambda run: run.seconds) for name, entry in series.items()}
    ratio = compare(seconds[OURS], seconds[OWN])
    met: Met = "yes" if ratio.upper <= 1 else "no" if ratio.lower > 1 else "one of two"
    shown = " and ".join(
        f"{name} {sorted(values)[len(values) // 2]:.2f} s" for name, values in seconds.items()
    )
    return Verdict(f"{what}, {context.medium}", "<= 1 of DeepSpeed's", f"{ratio} ({shown})", met)
