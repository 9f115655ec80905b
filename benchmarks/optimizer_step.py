"""A step of AdamW with float32 masters of bfloat16 parameters, its states on the directory."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aio.measure import fio
from aio.measure.files import prepare_file
from aio.measure.harness import (
    BenchError,
    Contestant,
    Ratio,
    Sample,
    Series,
    compare,
    run_rounds,
    stopwatch,
)
from aio.measure.transfers import bytes_by_path, moved_since
from aio.swap import SwappedOptimizer, SwapStore
from aio.swap.optimizer import SUB_GROUP_BYTES

from . import ours
from .context import Context
from .results import Met, Result, Verdict, not_measured

TITLE = "Optimizer step, states on the drive"
SWAPPED, CACHED, MEMORY = "aio swapped", "aio swapped, half cached", "in memory"
ELEMENTS = 1 << 22  # of a parameter
STATE_BYTES = 12  # of an element: master and two moments, float32
TARGET, TRAFFIC_TARGET, PEER_TARGET = 1.15, 0.5, 1.0
PEER = "DeepSpeed PipelinedOptimizerSwapper"
OPTIONS: dict[str, Any] = {"lr": 1e-4, "fused": True}


def run(context: Context) -> Result:
    """--size is that of the bfloat16 parameters; the states are six times as much.

    The limit of a round is the longer of computing alone (the optimizer in memory) and moving the
    bytes alone: the best fio that reads and writes as many as a step, mixed (rw=rw) or first the
    one, then the other, whichever is faster.
    """
    result = Result("optimizer_step", TITLE)
    count = max(context.size // 2 // ELEMENTS, 4)
    states = count * ELEMENTS * STATE_BYTES
    stores = 2 if context.deepspeed is None else 3
    needed = stores * states + context.size
    if shutil.disk_usage(context.folder).free < needed:
        raise BenchError(f"{context.folder}: needs {needed / 1e9:.1f} GB free")
    params = [torch.nn.Parameter(torch.randn(ELEMENTS, dtype=torch.bfloat16)) for _ in range(count)]
    for param in params:
        param.grad = torch.randn(ELEMENTS, dtype=torch.bfloat16) * 1e-3
    path = prepare_file(context.folder / "fio.bin", context.size)
    passes = max(states // context.size, 1)
    mixed, reading, writing = (
        fio.Job(
            direction, fio.one_file(path, context.size), context.size, depth=context.queue_depth,
            mode=context.fio_mode, passes=loops, kernel_workers=context.on_tmpfs,
        )
        for direction, loops in (("rw", 2 * passes), ("read", passes), ("write", passes))
    )  # fmt: skip
    in_memory = _InMemory(params)
    with (
        _Swapped(context, params, states, 0) as swapped,
        _Swapped(context, params, states, states // 2) as cached,
    ):
        contestants = [
            Contestant(SWAPPED, swapped.run, context.attempts, swapped.warm_up),
            Contestant(CACHED, cached.run, context.attempts, cached.warm_up),
            Contestant(MEMORY, lambda: _timed(in_memory.step, 2 * states), context.attempts),
            *fio.contestants(mixed, context.attempts, quick=True),
            _in_turn((reading, writing), "io_uring fixed", context),
            *_deepspeed(context, result, count, states),
        ]
        series = run_rounds(contestants, context.rounds, context.progress)
        if PEER in series:
            _check_deepspeed(context, states)
        traffic = cached.moved_bytes / swapped.moved_bytes
    best = fio.best(series)
    work = f"{count * ELEMENTS / 1e6:.0f} M parameters, {states / 1e9:.2f} GB of states"
    # Rates are of the bytes that a step reads and writes without a cache.
    result.add(work, "overwrite", series, best)
    result.verdicts += [
        _against_limit(series, best, context),
        Verdict(
            "traffic with half of the states cached",
            f"<= {TRAFFIC_TARGET:g}",
            f"{traffic:.3f}",
            "yes" if traffic <= TRAFFIC_TARGET else "no",
        ),
        _against_deepspeed(series, result),
    ]
    return result


def _in_turn(jobs: Sequence[fio.Job], engine: str, context: Context) -> Contestant:
    runners = [fio.Runner([job], engine) for job in jobs]

    def warm_up() -> None:
        for runner in runners:
            runner.warm_up()

    def run() -> Sample:
        parts = [runner() for runner in runners]
        return Sample(
            sum(part.seconds for part in parts),
            sum(part.nbytes for part in parts),
            sum(part.cpu_seconds for part in parts),
            sum(part.operations for part in parts),
            parts[0].mode,
        )

    return Contestant(f"fio {engine}, read then write", run, context.attempts, warm_up)


def _against_limit(series: dict[str, Series], best: Series, context: Context) -> Verdict:
    """Seconds of a step, over the longer of computing alone and of moving the bytes alone."""
    limits = [
        max(compute, transfer)
        for compute, transfer in zip(_seconds(series[MEMORY]), _seconds(best), strict=True)
    ]
    return _at_most_times(
        f"seconds of a step, {context.medium}",
        f"<= {TARGET:g} of max(compute, bytes / fio)",
        compare(_seconds(series[SWAPPED]), limits),
        TARGET,
    )


def _against_deepspeed(series: dict[str, Series], result: Result) -> Verdict:
    what, target = "step against DeepSpeed", f"<= {PEER_TARGET:g}"
    if PEER not in series:
        return not_measured(what, target, result.missing[PEER])
    ratio = compare(_seconds(series[SWAPPED]), _seconds(series[PEER]))
    return _at_most_times(what, target, ratio, PEER_TARGET)


def _at_most_times(what: str, target: str, ratio: Ratio, most: float) -> Verdict:
    met: Met = "yes" if ratio.upper <= most else "no" if ratio.lower > most else "one of two"
    return Verdict(what, target, str(ratio), met)


def _seconds(series: Series) -> list[float]:
    return series.values(lambda run: run.seconds)


def _deepspeed(context: Context, result: Result, count: int, states: int) -> list[Contestant]:
    """Its swapper on as many parameters in sub-groups of the same size, with the same optimizer."""
    peer = context.deepspeed
    if peer is None:
        result.missing[PEER] = context.deepspeed_missing
        return []
    context.progress(f"{PEER}: starting")
    folder = context.folder / "deepspeed"
    folder.mkdir()
    try:
        peer.ask(
            "swapper",
            folder=str(folder),
            count=count,
            each=max(SUB_GROUP_BYTES // (ELEMENTS * STATE_BYTES), 1),
            elements=ELEMENTS,
            block_size=context.block_size,
            queue_depth=context.queue_depth,
            options=OPTIONS,
        )
    except BenchError as error:  # of a version whose swapper is another one
        result.missing[PEER] = str(error)
        return []
    run = functools.partial(peer.sample, "swapper_step", context.fio_mode, nbytes=2 * states)
    return [Contestant(PEER, run, context.attempts)]


def _check_deepspeed(context: Context, states: int) -> None:
    if context.deepspeed is None:
        raise BenchError("DeepSpeed's worker is gone")
    stored = context.deepspeed.ask("swapper_check")["stored"]
    context.deepspeed.forget()
    if stored != states:
        raise BenchError(f"DeepSpeed stores {stored} bytes of states of {states}")


class _InMemory:
    """The same optimizer on masters in memory, a parameter at a time, as little as is needed."""

    def __init__(self, params: list[torch.nn.Parameter]) -> None:
        self._parts = []
        for param in params:
            master = torch.nn.Parameter(param.detach().float())
            self._parts.append((param, master, torch.optim.AdamW([master], **OPTIONS)))
        self.step()  # makes the states

    @torch.no_grad()
    def step(self) -> None:
        for param, master, optimizer in self._parts:
            if param.grad is None:
                raise BenchError("a parameter has no gradient")
            master.grad = param.grad.float()
            optimizer.step()
            param.copy_(master)
            master.grad = None


class _Swapped:
    """A swapped optimizer in a store of its own."""

    def __init__(
        self, context: Context, params: list[torch.nn.Parameter], states: int, cache_bytes: int
    ) -> None:
        self._context = context
        self._states = states
        self._handle = ours.handle(context)
        self._store = SwapStore(context.folder, self._handle)
        self._optimizer = SwappedOptimizer(
            params,
            torch.optim.AdamW,
            swap_dir=self._store,
            cache_bytes=cache_bytes,
            master_weights=True,
            **OPTIONS,
        )
        self.moved_bytes = 0  # by the last step

    def warm_up(self) -> None:
        """States are made, and the cache is filled."""
        for _ in range(2):
            self._optimizer.step()

    def run(self) -> Sample:
        """One step, all bytes of which the handle has seen."""
        before = bytes_by_path(self._handle)
        sample = _timed(self._optimizer.step, 2 * self._states)
        moved = moved_since(self._handle, before)
        self.moved_bytes = sum(moved.values())
        stats = self._optimizer.stats()
        last = stats["last_step"]
        expected = 0 if last is None else last["bytes_read"] + last["bytes_written"]
        if self.moved_bytes != expected or stats["state_bytes"] < self._states:
            raise BenchError(
                f"{self.moved_bytes} bytes were moved of {expected}, {stats['state_bytes']} bytes "
                f"of states of {self._states} are stored"
            )
        mode = ours.mode_of(moved, self._context)
        return Sample(sample.seconds, sample.nbytes, sample.cpu_seconds, 1, mode)

    def __enter__(self) -> _Swapped:
        return self

    def __exit__(self, *exception: object) -> None:
        self._optimizer.close()
        self._store.close()
        self._handle.close()


def _timed(step: Callable[[], object], nbytes: int) -> Sample:
    with stopwatch() as watch:
        step()
    return Sample(watch.seconds, nbytes, watch.cpu_seconds, 1, "memory")
