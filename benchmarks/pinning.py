"""Page-locking 1 GiB: cold, released, and from the pool, against posix_memalign + mlock."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from pinned_manager import empty_cache

from . import ours
from .context import Context
from .harness import BenchError, TimedCalls
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
)
_PAGE = 4096
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mlock.argtypes = _LIBC.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.free.argtypes = (ctypes.c_void_p,)
_LIBC.free.restype = None
_LIBC.posix_memalign.argtypes = (
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_size_t,
    ctypes.c_size_t,
)


def run(context: Context) -> Result:
    """Ten interleaved repeats of locking and releasing --size bytes both ways; medians of all."""
    result = Result("pinning", TITLE)
    nbytes, repeats = context.size, 3 if context.quick else 10
    timed = {name: TimedCalls(name) for name in NAMES}
    with ours.handle(context) as handle:
        for number in range(repeats):
            context.progress(f"page-locking, {number + 1} of {repeats}")
            sides: list[Callable[[], None]] = [
                lambda: _ours(handle, nbytes, timed),
                lambda: _libc(nbytes, timed),
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
        before = locked_bytes() if lock == "aio cold" else 0  # what the pool holds stays locked
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


def _libc(nbytes: int, timed: dict[str, TimedCalls]) -> None:
    """What DeepSpeed does: posix_memalign, then mlock, which faults every page in."""
    before = locked_bytes()
    pointer = ctypes.c_void_p()
    start = time.perf_counter()
    error = _LIBC.posix_memalign(ctypes.byref(pointer), _PAGE, nbytes)
    if error:
        raise BenchError(f"posix_memalign of {nbytes} bytes: {os.strerror(error)}")
    if _LIBC.mlock(pointer, nbytes):
        error = ctypes.get_errno()
        _LIBC.free(pointer)
        raise BenchError(f"mlock of {nbytes} bytes: {os.strerror(error)} (see ulimit -l)")
    timed["memalign + mlock"].seconds.append(time.perf_counter() - start)
    _check_locked(before, nbytes)
    start = time.perf_counter()
    _LIBC.munlock(pointer, nbytes)
    _LIBC.free(pointer)
    timed["munlock + free"].seconds.append(time.perf_counter() - start)


def _check_locked(before: int, nbytes: int) -> None:
    now = locked_bytes()
    if now - before < nbytes:
        raise BenchError(f"only {now - before} of {nbytes} bytes are locked (VmLck)")


def locked_bytes() -> int:
    """VmLck of this process in bytes."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmLck:"):
                return int(line.split()[1]) * 1024
    raise BenchError("/proc/self/status has no VmLck")
