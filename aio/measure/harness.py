"""Interleaved measurement: contestants run in turn, and every figure keeps its samples.

One machine's disk drifts by tens of per cent within minutes, so two figures measured one after the
other do not compare. Here every contestant runs once in every round, the order rotates from round
to round, and two of them are compared by the ratio of their medians and by the median of their
per-round ratios.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

GB = 1e9


class BenchError(RuntimeError):
    """A benchmark cannot give an honest figure: an I/O error, missing bytes, a missing tool."""


@dataclass(frozen=True)
class Sample:
    """One timed run: the bytes that completed, and the wall and processor seconds they took."""

    seconds: float
    nbytes: int
    cpu_seconds: float
    operations: int = 0
    mode: str = ""
    p50: float | None = None
    p99: float | None = None

    @property
    def gb_per_second(self) -> float:
        return self.nbytes / GB / self.seconds

    @property
    def cpu_per_gb(self) -> float:
        return self.cpu_seconds / (self.nbytes / GB)


@dataclass
class Contestant:
    """Does the work once when called; the better of `attempts` runs counts in each round."""

    name: str
    run: Callable[[], Sample]
    attempts: int = 1
    warm_up: Callable[[], object] | None = None


@dataclass
class Series:
    """What one contestant did: `kept` has the better run of each round, `all` has every run."""

    name: str
    kept: list[Sample] = field(default_factory=list)
    all: list[list[Sample]] = field(default_factory=list)

    def values(self, of: Callable[[Sample], float]) -> list[float]:
        return [of(sample) for sample in self.kept]

    def rates(self) -> list[float]:
        return self.values(lambda sample: sample.gb_per_second)

    def median_rate(self) -> float:
        return statistics.median(self.rates())

    def median_cpu_per_gb(self) -> float:
        return statistics.median(self.values(lambda sample: sample.cpu_per_gb))

    def median_cores(self) -> float:
        """Processors kept busy, in the median."""
        return statistics.median(self.values(lambda sample: sample.cpu_seconds / sample.seconds))

    def median_latency(self, which: str) -> float | None:
        """Median over the rounds of "p50" or "p99" in seconds; None where there is none."""
        values = [value for sample in self.kept if (value := getattr(sample, which)) is not None]
        return statistics.median(values) if values else None

    @property
    def mode(self) -> str:
        return self.kept[-1].mode


@dataclass(frozen=True)
class Ratio:
    """How two series compare; where a machine drifts the two may disagree, so both are kept."""

    of_medians: float
    median_of_rounds: float

    @property
    def lower(self) -> float:
        return min(self.of_medians, self.median_of_rounds)

    @property
    def upper(self) -> float:
        return max(self.of_medians, self.median_of_rounds)

    def __str__(self) -> str:
        return f"{self.of_medians:.3f} / {self.median_of_rounds:.3f}"


def compare(ours: Sequence[float], other: Sequence[float]) -> Ratio:
    """`ours` over `other`, both with one value per round, taken in the same order."""
    rounds = [a / b for a, b in zip(ours, other, strict=True)]
    return Ratio(statistics.median(ours) / statistics.median(other), statistics.median(rounds))


def fastest(series: Sequence[Series]) -> Series:
    """The series with the highest median rate."""
    return max(series, key=Series.median_rate)


def run_rounds(
    contestants: Sequence[Contestant],
    rounds: int,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Series]:
    """Run every contestant once a round, starting one further along each round."""
    for contestant in contestants:
        if contestant.warm_up is not None:
            progress(f"{contestant.name}: warming up")
            contestant.warm_up()
    result = {contestant.name: Series(contestant.name) for contestant in contestants}
    for number in range(rounds):
        shift = number % len(contestants)
        for contestant in (*contestants[shift:], *contestants[:shift]):
            progress(f"{contestant.name}, round {number + 1} of {rounds}")
            attempts = [contestant.run() for _ in range(contestant.attempts)]
            result[contestant.name].all.append(attempts)
            result[contestant.name].kept.append(max(attempts, key=lambda run: run.gb_per_second))
    return result


@dataclass
class Stopwatch:
    """Wall and processor seconds of a `with` block; read after it."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time a block; processor time is user + system of all threads of this process."""
    watch = Stopwatch()
    cpu = _own_cpu()
    start = time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - start
    watch.cpu_seconds = _own_cpu() - cpu


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of `values` lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


@dataclass
class TimedCalls:
    """Seconds of single calls, for things too short to have a rate."""

    name: str
    mode: str = ""
    seconds: list[float] = field(default_factory=list)
    round_medians: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def time_calls(
    functions: Sequence[tuple[str, str, Callable[[], object]]], batches: int, calls: int
) -> dict[str, TimedCalls]:
    """Time each (name, mode, function) call by call, in alternating batches whose order rotates."""
    result = {name: TimedCalls(name, mode) for name, mode, _ in functions}
    for number in range(batches):
        shift = number % len(functions)
        for name, _, function in (*functions[shift:], *functions[:shift]):
            batch = []
            for _ in range(calls):
                start = time.perf_counter_ns()
                function()
                batch.append((time.perf_counter_ns() - start) * 1e-9)
            result[name].seconds += batch
            result[name].round_medians.append(statistics.median(batch))
    return result
