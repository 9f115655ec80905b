"""Page-locking: allocate, free and reuse 1 GiB, and pinned tensors (pinned_tensors.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from aio.measure.harness import BenchError, TimedCalls
from pinned_manager import empty_cache

from . import libc_lock, ours, pinned_tensors
from .context import Context
from .results import CallRow, Result, Verdict

TITLE = "Page-locking"
NAMES = (
    "aio cold",
    "aio from the pool",
    "aio after a free",
    "aio release, dropped",
    "aio release, freed",
    "memalign + mlock",
    "munlock + free",
    "torch.empty + mlock",
    "munlock + drop",
)


def run(context: Context) -> Result:
    """Ten interleaved repeats of locking and releasing --size bytes each way; medians of all."""
    result = Result("pinning", TITLE)
    nbytes, repeats = context.size, 3 if context.quick else 10
    timed = {name: TimedCalls(name) for name in NAMES}
    with ours.handle(context) as handle:
        for number in range(repeats):
            context.progress(f"page-locking, {number + 1} of {repeats}")
            sides: list[Callable[[], None]] = [
                lambda: _ours(handle, nbytes, timed),
                lambda: _memalign(nbytes, timed),
                lambda: _torch_empty(nbytes, timed),
            ]
            for side in sides if number % 2 == 0 else reversed(sides):
                side()
    work = f"page-lock {nbytes / 2**20:.0f} MiB"
    result.calls += [CallRow(work, calls) for calls in timed.values()]
    if context.deepspeed is not None:
        answer = context.deepspeed.ask("pinning", nbytes=nbytes, calls=repeats)
        for part in ("lock", "release"):
            calls = TimedCalls(f"DeepSpeed {part}", "", answer[part])
            result.calls.append(CallRow(work, calls))
    else:
        result.missing["DeepSpeed"] = context.deepspeed_missing
    result.verdicts += [
        _times("page-locking, cold", timed["memalign + mlock"], timed["aio cold"], 2),
        _times("releasing", timed["munlock + free"], timed["aio release, freed"], 10),
        _times(
            "page-locking, from the pool",
            timed["memalign + mlock"],
            timed["aio from the pool"],
            100,
        ),
    ]
    pinned_tensors.measure(context, result)
    return result


def _times(what: str, slow: TimedCalls, fast: TimedCalls, target: float) -> Verdict:
    ratio = slow.median / fast.median
    measured = f"{ratio:.3g} x ({slow.median * 1e3:.3g} / {fast.median * 1e3:.3g} ms)"
    return Verdict(what, f">= {target:g} x as fast", measured, "yes" if ratio >= target else "no")


def _ours(handle: Any, nbytes: int, timed: dict[str, TimedCalls]) -> None:
    """Cold is with nothing in the pool. A dropped tensor goes back there, a freed one may not."""
    empty_cache()
    for lock, release in (
        ("aio cold", "aio release, dropped"),
        ("aio from the pool", "aio release, freed"),
        ("aio after a free", "aio release, freed"),
    ):
        before = (
            libc_lock.status_bytes("VmLck") if lock == "aio cold" else 0
        )  # what the pool holds stays locked
        start = time.perf_counter()
        tensor = handle.new_cpu_locked_tensor(nbytes, torch.empty(0, dtype=torch.uint8))
        timed[lock].seconds.append(time.perf_counter() - start)
        _check_locked(before, nbytes)
        start = time.perf_counter()
        if release == "aio release, freed":
            handle.free_cpu_locked_tensor(tensor)
        del tensor
        timed[release].seconds.append(time.perf_counter() - start)
    empty_cache()


def _memalign(nbytes: int, timed: dict[str, TimedCalls]) -> None:
    before = libc_lock.status_bytes("VmLck")
    start = time.perf_counter()
    pointer = libc_lock.allocate(nbytes)
    timed["memalign + mlock"].seconds.append(time.perf_counter() - start)
    _check_locked(before, nbytes)
    start = time.perf_counter()
    libc_lock.free(pointer, nbytes)
    timed["munlock + free"].seconds.append(time.perf_counter() - start)


def _torch_empty(nbytes: int, timed: dict[str, TimedCalls]) -> None:
    before = libc_lock.status_bytes("VmLck")
    start = time.perf_counter()
    tensor = libc_lock.mlock(torch.empty(nbytes, dtype=torch.uint8))
    timed["torch.empty + mlock"].seconds.append(time.perf_counter() - start)
    _check_locked(before, nbytes)
    start = time.perf_counter()
    libc_lock.munlock(tensor)
    del tensor
    timed["munlock + drop"].seconds.append(time.perf_counter() - start)


def _check_locked(before: int, nbytes: int) -> None:
    locked = libc_lock.status_bytes("VmLck") - before
    if locked < nbytes:
        raise BenchError(f"only {locked} of {nbytes} bytes are locked (VmLck)")
