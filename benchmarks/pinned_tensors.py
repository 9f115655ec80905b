"""pin_memory with and without a copy, is_pinned among many regions, and what a scratch peaks at."""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

import _deepnvme
from aio.measure.harness import BenchError, TimedCalls
from pinned_manager import empty_cache, is_pinned, pin_empty, pin_memory

from . import libc_lock
from .context import Context
from .results import CallRow, Met, Result, Verdict, at_most, not_measured

REGIONS = (10, 100, 1000, 10_000)
REGION_BYTES = 4096
OURS, PLAIN, DEEPSPEED = "aio native", "torch.empty + mlock", "DeepSpeed native"


def measure(context: Context, result: Result) -> None:
    """Adds the calls and the verdicts to ``result``."""
    with _native_backend():
        _pins(context, result)
        _lookups(context, result)
        _peaks(context, result)
    empty_cache()


@contextmanager
def _native_backend() -> Iterator[None]:
    before = os.environ.get("DS_PIN_MEMORY_BACKEND")
    os.environ["DS_PIN_MEMORY_BACKEND"] = "native"
    try:
        yield
    finally:
        del os.environ["DS_PIN_MEMORY_BACKEND"]
        if before is not None:
            os.environ["DS_PIN_MEMORY_BACKEND"] = before


def _deepspeed(context: Context, command: str, **arguments: object) -> dict[str, list[float]]:
    """Its answer; empty where it has no native backend, as before DeepSpeed 0.19."""
    if context.deepspeed is None:
        return {}
    return context.deepspeed.ask(command, **arguments)


# ---- pinning a tensor ----


def _pins(context: Context, result: Result) -> None:
    """In turn, a quarter of --size: nothing in the pool, so that everybody locks fresh pages."""
    nbytes, repeats = context.size // 4, 3 if context.quick else 10
    source = torch.ones(nbytes, dtype=torch.uint8)
    ways: dict[str, Callable[[bool], torch.Tensor]] = {
        OURS: lambda copy: pin_memory(source, make_copy=copy),
        PLAIN: functools.partial(_empty_and_mlock, source),
    }
    timed = {(name, copy): TimedCalls(name) for name in ways for copy in (True, False)}
    for number in range(repeats):
        context.progress(f"pin_memory, {number + 1} of {repeats}")
        for name in list(ways)[:: 1 if number % 2 else -1]:
            for copy in (True, False):
                empty_cache()
                start = time.perf_counter()
                pinned = ways[name](copy)
                timed[name, copy].seconds.append(time.perf_counter() - start)
                if name == PLAIN:
                    libc_lock.munlock(pinned)
                del pinned
    answer = _deepspeed(context, "pins", nbytes=nbytes, calls=repeats)
    for copy, key in ((True, "copy"), (False, "scratch")):
        work = f"pin {nbytes >> 20} MiB, {'with' if copy else 'without'} a copy"
        result.calls += [CallRow(work, timed[name, copy]) for name in ways]
        if key in answer:
            result.calls.append(CallRow(work, TimedCalls(DEEPSPEED, "", answer[key])))


def _empty_and_mlock(source: torch.Tensor, copy: bool) -> torch.Tensor:
    pinned = libc_lock.mlock(torch.empty_like(source))
    return pinned.copy_(source) if copy else pinned


# ---- asking ----


def _lookups(context: Context, result: Result) -> None:
    """A slice in the middle of one region, as they become more; a call's mean in each batch."""
    answer = _deepspeed(context, "lookups", regions=list(REGIONS), nbytes=REGION_BYTES)
    regions: list[torch.Tensor] = []
    natively: dict[int, TimedCalls] = {}
    for count in REGIONS:
        context.progress(f"is_pinned among {count} regions")
        regions += [pin_empty(REGION_BYTES, dtype=torch.uint8) for _ in range(count - len(regions))]
        part = regions[count // 2][100:200]
        if not is_pinned(part) or is_pinned(torch.empty(3)):
            raise BenchError("is_pinned is wrong")
        work = f"is_pinned, {count} regions"
        natively[count] = _mean_calls(_deepnvme.pin.is_pinned, part, "natively")
        result.calls.append(CallRow(work, natively[count]))
        result.calls.append(CallRow(work, _mean_calls(is_pinned, part, "pinned_manager")))
        if str(count) in answer:
            seconds = answer[str(count)]
            result.calls.append(CallRow(work, TimedCalls(DEEPSPEED, "", seconds)))
    fewest, most = natively[REGIONS[0]].median, natively[REGIONS[-1]].median
    result.verdicts += [
        at_most("is_pinned natively, 10,000 regions", most, 1e-6, "us", 1e6),
        at_most("is_pinned, 10,000 regions over 10", most / fewest, 1.5, "x"),
    ]
    regions.clear()


def _mean_calls(call: Callable[[torch.Tensor], bool], tensor: torch.Tensor, how: str) -> TimedCalls:
    timed = TimedCalls(OURS, how)
    for _ in range(30):
        start = time.perf_counter()
        for _ in range(1000):
            call(tensor)
        timed.seconds.append((time.perf_counter() - start) / 1000)
    return timed


# ---- memory ----


def _peaks(context: Context, result: Result) -> None:
    """The most that was resident meanwhile, over the size of the scratch."""
    nbytes = context.size
    source = functools.partial(torch.empty, nbytes, dtype=torch.uint8)
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "pin_empty": lambda: pin_empty(nbytes, dtype=torch.uint8),
        "pin_memory(make_copy=False)": lambda: pin_memory(source(), make_copy=False),
    }
    target = "1.0 x its size"
    answer = _deepspeed(context, "peaks", nbytes=nbytes)
    theirs = [f"{PLAIN} {_peak(lambda: libc_lock.mlock(source())) / nbytes:.3f}"]
    theirs += [f"DeepSpeed {name} {peak[0] / nbytes:.3f}" for name, peak in answer.items()]
    for name, make in ways.items():
        what = f"peak memory of {name}, {nbytes >> 20} MiB"
        context.progress(what)
        try:
            peak = statistics.median(_peak(make) for _ in range(3)) / nbytes
        except OSError as error:  # of clear_refs
            result.verdicts.append(not_measured(what, target, str(error)))
            continue
        met: Met = "yes" if 0.99 < peak < 1.01 else "no"
        measured = f"{peak:.3f} x ({', '.join(theirs)})"
        result.verdicts.append(Verdict(what, target, measured, met))


def _peak(make: Callable[[], torch.Tensor]) -> int:
    """Bytes by which the highest resident size (VmHWM) rose over what was resident before."""
    empty_cache()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # VmHWM begins again from what is resident now
    before = libc_lock.status_bytes("VmRSS")
    made = make()
    peak = libc_lock.status_bytes("VmHWM") - before
    del made
    return peak
