"""Finding the fastest of many candidates on a machine whose speed changes from run to run.

1. Every candidate that is left runs once in each round; the order rotates from round to round.
2. A rate counts relative to the median of its round, taken over those that are still compared, so
   that a slow minute does not count against those that it met.
3. After some rounds, more as fewer are left, the half with the worse medians over all rounds
   leaves, until one is left. One lucky run moves no median.
4. When the time is up the search ends where it is. A round that was not finished counts only if no
   other was.

It knows of no files: ``measure`` does the work, and whether it is time to stop is asked before each
measurement.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from aio.measure.harness import Sample

C = TypeVar("C", bound=Hashable)


@dataclass
class Entry(Generic[C]):
    """A candidate, what it did, and how it compares."""

    candidate: C
    samples: list[Sample] = field(default_factory=list)
    halvings: int = 0  # that it has outlived
    score: float = 0.0  # among those that it was compared with last; 0.0 if it never ran

    @property
    def bytes_per_second(self) -> float:
        """The median of all runs; there must be one."""
        return statistics.median([sample.nbytes / sample.seconds for sample in self.samples])

    @property
    def cpu_per_byte(self) -> float:
        """Processor seconds, the median of all runs; there must be one."""
        return statistics.median([sample.cpu_seconds / sample.nbytes for sample in self.samples])


class Rounds(Generic[C]):
    """Runs candidates in turn, and compares those that have run in the same rounds."""

    def __init__(
        self,
        candidates: Sequence[C],
        measure: Callable[[C], Sample],
        out_of_time: Callable[[], bool],
    ) -> None:
        self.entries = [Entry(candidate) for candidate in candidates]
        self.completed = 0
        self._measure = measure
        self._out_of_time = out_of_time
        self._rates: list[dict[C, float]] = []  # of each round

    def run(self, entries: Sequence[Entry[C]]) -> bool:
        """One round; False if the time was up before its end."""
        shift = self.completed % len(entries)
        rates: dict[C, float] = {}
        in_time = True
        for entry in (*entries[shift:], *entries[:shift]):
            in_time = not self._out_of_time()
            if not in_time:
                break
            sample = self._measure(entry.candidate)
            entry.samples.append(sample)
            rates[entry.candidate] = sample.nbytes / sample.seconds
        if in_time or not self._rates:
            self._rates.append(rates)
        self.completed += in_time
        return in_time

    def rank(self, entries: Sequence[Entry[C]]) -> list[Entry[C]]:
        """Best first, by medians over the rounds that all of them were in."""
        relative: dict[C, list[float]] = {entry.candidate: [] for entry in entries}
        for rates in self._rates:
            here = {candidate: rates[candidate] for candidate in relative if candidate in rates}
            for candidate, rate in here.items():
                relative[candidate].append(rate / statistics.median(here.values()))
        for entry in entries:
            values = relative[entry.candidate]
            entry.score = statistics.median(values) if values else 0.0
        return sorted(entries, key=lambda entry: -entry.score)


@dataclass(frozen=True)
class Ranking(Generic[C]):
    """All candidates, best first, and whether there was time to come to an end."""

    entries: list[Entry[C]]
    complete: bool

    def best(self, count: int) -> list[C]:
        """The first ``count`` candidates that were measured."""
        return [entry.candidate for entry in self.entries if entry.samples][:count]


def halve(
    candidates: Sequence[C],
    measure: Callable[[C], Sample],
    out_of_time: Callable[[], bool],
) -> Ranking[C]:
    """Search for the fastest candidate; see above. ``candidates`` has at least one."""
    rounds = Rounds(candidates, measure, out_of_time)
    left = rounds.entries
    ranked: list[Entry[C]] = []
    while True:
        in_time = all(rounds.run(left) for _ in range(_rounds_of(len(left))))
        left = rounds.rank(left)
        if not in_time or len(left) == 1:
            return Ranking(left + ranked, in_time)
        stay = (len(left) + 1) // 2
        left, ranked = left[:stay], left[stay:] + ranked
        for entry in left:
            entry.halvings += 1
        if len(left) == 1:
            return Ranking(left + ranked, True)


def planned_runs(count: int) -> int:
    """Measurements that halve() makes of ``count`` candidates, if it has the time."""
    total = _rounds_of(count) * count
    while count > 2:
        count = (count + 1) // 2
        total += _rounds_of(count) * count
    return total


def _rounds_of(left: int) -> int:
    """Rounds before the next halving: those that are close take more to tell apart."""
    return 3 if left > 8 else 5 if left > 4 else 7
