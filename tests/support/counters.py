"""What the process holds; equal before and after a test, or the test has found a leak."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

# Not a speed: only how long something that must happen may fail to before the test is called
# failed.
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Held:
    """One look at the process; locked and pinned are VmLck and VmPin in kB."""

    descriptors: int
    aio_contexts: int  # of libaio, which have no descriptor
    threads: int
    locked_kb: int
    pinned_kb: int


def status_kb(name: str) -> int:
    """The field `name` (VmLck, VmPin, VmRSS, VmHWM ...) of /proc/self/status in kB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(name)


def held_now() -> Held:
    """What this process holds at this moment."""
    return Held(
        descriptors=len(os.listdir("/proc/self/fd")),
        aio_contexts=Path("/proc/self/maps").read_text().count("/[aio]"),
        threads=len(os.listdir("/proc/self/task")),
        locked_kb=status_kb("VmLck"),
        pinned_kb=status_kb("VmPin"),
    )


def until(condition: Callable[[], bool], what: str) -> None:
    """Give the processor away until `condition()` holds; fail the test, saying `what`, if it never
    does.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what}")
        os.sched_yield()


@contextmanager
def counters() -> Iterator[Held]:
    """Everything that the block acquired is given back at its end.

    The kernel ends threads and uncharges the pages of a ring a little after the call that let them
    go returns, so equality is awaited, with a bound; and what it has not yet taken back when the
    block begins may go during it.  The pool of the library counts as given back: it is emptied on
    both sides.
    """
    _empty_cache()
    before = held_now()
    yield before

    def back() -> bool:
        now = held_now()
        late = now.threads <= before.threads and now.pinned_kb <= before.pinned_kb
        return late and replace(now, threads=before.threads, pinned_kb=before.pinned_kb) == before

    _empty_cache()
    try:
        until(back, "everything given back")
    except AssertionError:
        after = held_now()
        leaks = [
            f"{field.name}: {getattr(before, field.name)} -> {getattr(after, field.name)}"
            for field in fields(Held)
            if getattr(before, field.name) != getattr(after, field.name)
        ]
        raise AssertionError(f"not given back: {', '.join(leaks)}") from None


def _empty_cache() -> None:
    import _deepnvme

    gc.collect()
    _deepnvme.pin.empty_cache()
