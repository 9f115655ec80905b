"""What SwappedOptimizer.stats() returns, and how it is measured."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypedDict

import torch

from aio.swap.store_future import StoreFuture

Kind = Literal["read", "compute", "write"]


class Span(TypedDict):
    """One bar of a chart of a step; times in seconds since the step began."""

    kind: Kind
    sub_group: int
    start: float
    end: float


class StepStats(TypedDict):
    """One step. Seconds of a kind are those in which at least one of it was going on."""

    seconds: float
    read_seconds: float
    compute_seconds: float
    write_seconds: float
    overlap_seconds: float  # how much longer it would have taken with one after another
    waited_seconds: float  # for transfers, with nothing to compute
    bytes_read: int
    bytes_written: int
    cache_hits: int  # sub-groups that were in memory
    spans: list[Span]


class OptimizerStats(TypedDict):
    """Since the optimizer was made; sizes in bytes."""

    steps: int
    bytes_read: int
    bytes_written: int
    sub_groups: int
    state_bytes: int  # of swapped states, masters included; 0 before the first step
    cached_bytes: int  # of states in memory now
    buffer_bytes: int  # of pinned buffers now
    peak_buffer_bytes: int
    last_step: StepStats | None


@dataclass(eq=False)
class _Measured:
    kind: Kind
    sub_group: int
    start: float
    end: float | None = None

    def stop(self) -> None:
        self.end = time.perf_counter()


class StepMeter:
    """Measures one step. The names of the profiler's ranges are ``swap.KIND``."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._measured: list[_Measured] = []
        self._waited = 0.0
        self.bytes_read = 0
        self.bytes_written = 0
        self.cache_hits = 0

    def transfer(
        self, kind: Literal["read", "write"], sub_group: int, nbytes: int, future: StoreFuture
    ) -> StoreFuture:
        """Note a transfer that was just started."""
        measured = _Measured(kind, sub_group, time.perf_counter())
        self._measured.append(measured)
        # Not of the future, whose callbacks run later, in a thread of their own.
        future._ticket.add_done_callback(lambda _: measured.stop())
        if kind == "read":
            self.bytes_read += nbytes
        else:
            self.bytes_written += nbytes
        return future

    @contextmanager
    def computing(self, sub_group: int) -> Iterator[None]:
        measured = _Measured("compute", sub_group, time.perf_counter())
        self._measured.append(measured)
        try:
            with torch.autograd.profiler.record_function("swap.compute"):
                yield
        finally:
            measured.stop()

    @contextmanager
    def waiting(self, kind: Literal["read", "write"]) -> Iterator[None]:
        start = time.perf_counter()
        try:
            with torch.autograd.profiler.record_function(f"swap.wait_{kind}"):
                yield
        finally:
            self._waited += time.perf_counter() - start

    def result(self) -> StepStats:
        """Once nothing is in flight."""
        now = time.perf_counter()
        spans: list[Span] = [
            {
                "kind": measured.kind,
                "sub_group": measured.sub_group,
                "start": measured.start - self._began,
                # The callback of a transfer may still be on its way.
                "end": (measured.end or now) - self._began,
            }
            for measured in self._measured
        ]
        busy = {kind: _covered(s for s in spans if s["kind"] == kind) for kind in _KINDS}
        return {
            "seconds": now - self._began,
            "read_seconds": busy["read"],
            "compute_seconds": busy["compute"],
            "write_seconds": busy["write"],
            "overlap_seconds": max(sum(busy.values()) - _covered(spans), 0.0),
            "waited_seconds": self._waited,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "cache_hits": self.cache_hits,
            "spans": spans,
        }


_KINDS: tuple[Kind, ...] = ("read", "compute", "write")


def _covered(spans: Iterable[Span]) -> float:
    """Seconds in which at least one of them was going on."""
    total, until = 0.0, float("-inf")
    for start, end in sorted((span["start"], span["end"]) for span in spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total
