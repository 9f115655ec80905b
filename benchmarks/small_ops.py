"""The fixed costs: one 4 KiB read, a handle's life, and asking whether a tensor is pinned."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from aio.measure.files import drop_cache, prepare_file
from aio.measure.harness import Ratio, TimedCalls, compare, time_calls
from aio.measure.transfers import bytes_by_path, moved_since, pinned

from . import ours, python_peer
from .context import Context
from .results import CallRow, Met, Result, Verdict, at_most, not_measured

TITLE = "Fixed costs of one call"
NBYTES = 4096
REGIONS = 5000
OURS, PYTHON = "aio sync_pread", "Python open+preadv+close"


def run(context: Context) -> Result:
    """4 KiB reads against open + preadv + close, handles, is_pinned among 5,000 regions."""
    result = Result("small_ops", TITLE)
    path = prepare_file(context.folder / "small.bin", 2 * NBYTES)
    with ours.handle(context) as handle, pinned(handle, NBYTES) as tensor:
        _read(context, result, handle, tensor, path, 0)
        _read(context, result, handle, torch.ones(NBYTES, dtype=torch.uint8), path, 1)
    _deepspeed(context, result, prepare_file(context.folder / "whole.bin", NBYTES))
    _handles(context, result)
    _is_pinned(context, result)
    return result


def _read(
    context: Context, result: Result, handle: Any, tensor: torch.Tensor, path: Path, offset: int
) -> None:
    """Offset 0: both with O_DIRECT. Offset 1, which no device takes: both from a warm cache."""
    direct = offset == 0
    name = str(path)
    mode = context.fio_mode if direct else "page cache"
    before = bytes_by_path(handle)
    series = time_calls(
        [
            (OURS, mode, lambda: handle.sync_pread(tensor, name, offset)),
            (PYTHON, mode, python_peer.small_read(path, NBYTES, offset, direct)),
        ],
        batches=4 if context.quick else 20,
        calls=50 if context.quick else 100,
    )
    # The handle says itself what it did, which need not be what was meant.
    series[OURS].mode = ours.mode_of(moved_since(handle, before), context)
    drop_cache(path)
    work = f"4 KiB read at offset {offset}"
    result.calls += [CallRow(work, calls) for calls in series.values()]
    what = f"one 4 KiB sync_pread, {mode}"
    result.verdicts.append(_within(what, series[OURS], series[PYTHON]))


def _within(what: str, mine: TimedCalls, python: TimedCalls) -> Verdict:
    """Our time over Python's, both ways; met when neither is over one."""
    rounds = compare(mine.round_medians, python.round_medians).median_of_rounds
    ratio = Ratio(mine.median / python.median, rounds)
    met: Met = "yes" if ratio.upper <= 1 else "no" if ratio.lower > 1 else "one of two"
    return Verdict(what, "<= 1 x Python's", str(ratio), met)


def _deepspeed(context: Context, result: Result, path: Path) -> None:
    """DeepSpeed's figures for the same calls, in its own process right after ours."""
    if context.deepspeed is None:
        result.missing["DeepSpeed"] = context.deepspeed_missing
        return
    calls = 200 if context.quick else 2000
    answer = context.deepspeed.ask("small", path=str(path), nbytes=NBYTES, calls=calls)
    timed = TimedCalls("DeepSpeed sync_pread", context.fio_mode, answer["seconds"])
    result.calls.append(CallRow("4 KiB read at offset 0", timed))
    answer = context.deepspeed.ask("handles", calls=10)
    timed = TimedCalls("DeepSpeed", "", answer["seconds"])
    result.calls.append(CallRow("create and destroy a handle", timed))


def _handles(context: Context, result: Result) -> None:
    timed = TimedCalls("aio", "")
    for _ in range(20 if context.quick else 100):
        start = time.perf_counter()
        ours.handle(context).close()
        timed.seconds.append(time.perf_counter() - start)
    result.calls.append(CallRow("create and destroy a handle", timed))
    result.verdicts.append(at_most("create and destroy a handle", timed.median, 5e-3, "ms", 1e3))


def _is_pinned(context: Context, result: Result) -> None:
    calls, batches = 1000, 20
    timed = TimedCalls("aio is_pinned, a miss", f"{REGIONS} regions")
    with ExitStack() as stack:
        handle = stack.enter_context(ours.handle(context))
        for _ in range(REGIONS):
            stack.enter_context(pinned(handle, NBYTES))
        plain = torch.ones(NBYTES, dtype=torch.uint8)
        is_pinned = handle.is_pinned
        if is_pinned(plain):
            result.verdicts.append(not_measured("is_pinned, a miss", "<= 3 us", "it is a hit"))
            return
        for _ in range(batches):
            start = time.perf_counter()
            for _ in range(calls):
                is_pinned(plain)
            timed.seconds.append((time.perf_counter() - start) / calls)
    result.calls.append(CallRow(f"is_pinned among {REGIONS} regions", timed))
    result.verdicts.append(at_most("is_pinned, a miss", timed.median, 3e-6, "us", 1e6))
