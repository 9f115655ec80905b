"""What a trace costs: the same small calls on a handle with one and on a handle without."""

from __future__ import annotations

from contextlib import ExitStack

import torch

import aio
from aio.measure.files import prepare_file
from aio.measure.harness import Ratio, TimedCalls, compare, time_calls

from .context import Context
from .results import CallRow, Result, Verdict

TITLE = "Traces, on and off"
NBYTES = 4096
MANY = 1000
OFF, ON = "aio without a trace", "aio with a trace"
MOST = 1.5  # times the call without one


def run(context: Context) -> Result:
    """One 4 KiB sync_pread, and 1,000 in one call, from the page cache: nothing hides the cost."""
    result = Result("tracing", TITLE)
    # At offset 1, which no device takes: both from a warm cache.
    path = str(prepare_file(context.folder / "traced.bin", (MANY + 1) * NBYTES))
    tensor = torch.ones(MANY, NBYTES, dtype=torch.uint8)
    items = [(row, path, 1 + number * NBYTES) for number, row in enumerate(tensor)]
    with ExitStack() as stack:
        traces = {OFF: "", ON: str(context.folder / "trace.json")}
        handles = {
            name: stack.enter_context(
                aio.aio_handle(context.block_size, context.queue_depth, trace=trace)
            )
            for name, trace in traces.items()
        }
        batches = 4 if context.quick else 20
        single = time_calls(
            [(name, "page cache", _single(one, tensor[0], path)) for name, one in handles.items()],
            batches=batches,
            calls=100,
        )
        many = time_calls(
            [(name, "page cache", _many(one, items)) for name, one in handles.items()],
            batches=batches,
            calls=3,
        )
    for work, series in (("4 KiB read", single), (f"{MANY} x 4 KiB in one call", many)):
        result.calls += [CallRow(work, calls) for calls in series.values()]
        result.verdicts.append(_verdict(work, series[OFF], series[ON]))
    return result


def _single(handle: aio.aio_handle, tensor: torch.Tensor, path: str):
    return lambda: handle.sync_pread(tensor, path, 1)


def _many(handle: aio.aio_handle, items: list[tuple[torch.Tensor, str, int]]):
    return lambda: handle.pread_many(items)


def _verdict(work: str, off: TimedCalls, on: TimedCalls) -> Verdict:
    rounds = compare(on.round_medians, off.round_medians).median_of_rounds
    ratio = Ratio(on.median / off.median, rounds)
    what = f"{work} with a trace"
    return Verdict(what, f"<= {MOST} x without", str(ratio), "yes" if ratio.upper <= MOST else "no")
