"""What goes on while the tuner runs: a bar on a terminal, lines where they are asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from aio.measure.harness import Sample
from aio.measure.sizes import GIB
from aio.options import HandleOptions
from aio.tune.session import Deadline, Watcher
from aio.tune.summary import in_words


class Bar(Watcher):
    """Moves a bar, or stays silent; with ``verbose`` writes a line for each run, too."""

    def __init__(self, bar: Progress, deadline: Deadline, verbose: bool) -> None:
        self._bar = bar
        self._deadline = deadline
        self._verbose = verbose
        self._total = deadline.left()
        self._task = bar.add_task("", total=self._total, left="")
        self._best: dict[str, str] = {}

    def starts(self, stage: str, direction: str, options: HandleOptions) -> None:
        left = max(self._deadline.left(), 0.0)
        now = f"{stage}, {direction}: {in_words(options)}"
        self._bar.update(
            self._task,
            completed=self._total - left,
            left=f"{left:.0f} s left",
            description="\n".join([now, *self._best.values()]),
        )

    def leads(self, direction: str, options: HandleOptions, bytes_per_second: float) -> None:
        rate = f"{bytes_per_second / GIB:.2f} GB/sec"
        self._best[direction] = f"best to {direction} so far: {rate}, {in_words(options)}"

    def ended(self, stage: str, direction: str, options: HandleOptions, sample: Sample) -> None:
        if self._verbose:
            rate = sample.nbytes / sample.seconds / GIB
            line = f"{stage}, {direction}: {in_words(options)}: {rate:.3f} GB/sec, {sample.mode}"
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def shown(deadline: Deadline, verbose: bool) -> Iterator[Bar]:
    """On standard error; the bar only where that is a terminal."""
    bar = Progress(
        BarColumn(20),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        yield Bar(bar, deadline, verbose)
