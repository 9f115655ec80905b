"""One run of the tuner, from the first look at the drive to the options to use.

1. The default options run twice in each direction: that warms up, and tells how much a run may
   move.
2. For each direction the candidates are halved (search.py); then the best of them, and itself with
   the options that seldom matter changed, one at a time.
3. The best of both directions and the defaults run in turn, reading and writing. What is reported
   are the medians of these fresh runs: those that have made a candidate win are too good.

Each part has its share of the time. When that is up, what has been found so far goes on.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aio.measure.harness import BenchError, Sample
from aio.measure.sizes import format_size
from aio.options import HandleOptions
from aio.tune.search import Entry, Ranking, Rounds, halve, planned_runs
from aio.tune.space import DEFAULTS, peculiarity, spread, unique, variants, without_twins

FINALISTS = 2  # of each direction
FINAL_ROUNDS = 9
SEARCHING = 0.75  # of the time; the rest is for step 3
FIRST_HALVING = 0.7  # of the time of one direction
ALIKE = 0.03  # this close to the best counts as equally fast
FITTED = 0.75  # of the time is planned for: most candidates are slower than the defaults
LEAST_BYTES = 32 << 20  # of a run, however short the time: less says nothing about a drive;
LEAST_SECONDS = 0.03  # nor do shorter ones


class Work(Protocol):
    """What is measured: see Workload."""

    nbytes: int

    def run(self, direction: str, options: HandleOptions) -> Sample: ...
    def resize(self, nbytes: int) -> None: ...


class Deadline:
    """The time that there is, in seconds; parts of it end earlier."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        return self._end - self._clock()

    def passed(self) -> bool:
        return self.left() <= 0

    def part(self, fraction: float) -> Deadline:
        """One that ends when ``fraction`` of what is left now has gone."""
        return Deadline(self.left() * fraction, self._clock)


@dataclass
class Direction:
    """The search in one direction: its rankings, first the wide one, and the best of all."""

    rankings: list[Ranking[HandleOptions]]
    finalists: list[HandleOptions]


@dataclass
class Findings:
    """What was found.

    Attributes:
        searches: by direction ("read", "write").
        final: by direction, the medians to report: finalists and the defaults, best first.
        best: by direction, the options that are best for it alone.
        both: the options for one handle that does all that was measured: those whose worse
            direction is nearest to the best of that direction.
        notes: what the reader should know, such as a search that had no time to end.
    """

    searches: dict[str, Direction]
    final: dict[str, list[Entry[HandleOptions]]]
    best: dict[str, HandleOptions]
    both: HandleOptions
    default: HandleOptions
    notes: list[str] = field(default_factory=list)

    def bytes_per_second(self, direction: str, options: HandleOptions) -> float:
        return self.entry(direction, options).bytes_per_second

    def entry(self, direction: str, options: HandleOptions) -> Entry[HandleOptions]:
        return next(found for found in self.final[direction] if found.candidate == options)


class Watcher:
    """Learns what goes on; what it does is for its subclasses."""

    def starts(self, stage: str, direction: str, options: HandleOptions) -> None:
        """Before each run."""

    def ended(self, stage: str, direction: str, options: HandleOptions, sample: Sample) -> None:
        """After each run."""

    def leads(self, direction: str, options: HandleOptions, bytes_per_second: float) -> None:
        """When other options are the best of a direction so far, by the median of their runs."""


class Session:
    """Tunes ``work`` in some directions, within a deadline.

    ``candidates`` are the options to try; the defaults run beside them, and can only be the result
    if they are among them. ``backends`` are the engines to try the best with; none leave the second
    look out.
    """

    def __init__(
        self,
        work: Work,
        directions: Sequence[str],
        candidates: Sequence[HandleOptions],
        backends: Sequence[str],
        deadline: Deadline,
        watcher: Watcher | None = None,
    ) -> None:
        self._work = work
        self._directions = directions
        self._candidates = without_twins(candidates, work.nbytes)
        self._backends = backends
        self._deadline = deadline
        self._watcher = watcher or Watcher()
        self._leader: dict[str, HandleOptions] = {}
        self._default = dataclasses.replace(DEFAULTS, backend=candidates[0].backend)
        self._default_is_candidate = self._default in candidates
        self._notes: list[str] = []
        self._samples: dict[str, dict[HandleOptions, list[Sample]]]
        self._samples = {direction: {} for direction in directions}

    def run(self) -> Findings:
        """All of it. Raises what the work raises."""
        self._fit()
        searches: dict[str, Direction] = {}
        share = self._deadline.part(SEARCHING)
        for index, direction in enumerate(self._directions):
            here = share.part(1 / (len(self._directions) - index))
            searches[direction] = self._search(direction, here)
        final = self._compare(searches)
        return Findings(
            searches=searches,
            final=final,
            best={way: self._choose({way: entries}) for way, entries in final.items()},
            both=self._choose(final),
            default=self._default,
            notes=self._notes,
        )

    def _run(self, stage: str, direction: str, options: HandleOptions) -> Sample:
        self._watcher.starts(stage, direction, options)
        sample = self._work.run(direction, options)
        self._samples[direction].setdefault(options, []).append(sample)
        self._watcher.ended(stage, direction, options, sample)
        rates = {
            candidate: Entry(candidate, samples).bytes_per_second
            for candidate, samples in self._samples[direction].items()
        }
        leader = max(rates, key=rates.__getitem__)
        if self._leader.get(direction) != leader:
            self._leader[direction] = leader
            self._watcher.leads(direction, leader, rates[leader])
        return sample

    def _fit(self) -> None:
        """Make runs as large as the time allows; where even small ones do not fit, try fewer."""
        rates: list[float] = []
        overheads: list[float] = []
        factor = 1.0
        for direction in (*self._directions, *self._directions):  # the first runs warm up
            before = self._deadline.left()
            if before <= 0 and len(rates) < len(self._directions):
                raise BenchError(
                    f"there was no time to {direction} even once: give a longer --time or a "
                    "smaller --io_size"
                )
            if before <= 0:
                break
            sample = self._run("first look", direction, self._default)
            overheads.append(max(before - self._deadline.left() - sample.seconds, 0.0))
            rates.append(sample.nbytes / sample.seconds)
            factor = sample.nbytes / self._work.nbytes  # several files, several loops
        ways = len(self._directions)
        overhead, per_byte = max(overheads[-ways:]), factor / min(rates[-ways:])
        plan = self._plan(len(self._candidates))
        most = self._work.nbytes
        affordable = min(seconds / runs for runs, seconds in plan.values()) - overhead
        least = max(LEAST_BYTES, int(LEAST_SECONDS / per_byte))
        nbytes = min(most, max(int(affordable / per_byte), least) >> 20 << 20)
        if nbytes < most:
            self._work.resize(nbytes)
            self._notes.append(
                f"each run moves {format_size(nbytes)} of each file instead of "
                f"{format_size(most)}, for the time: see --time"
            )
        self._economize(overhead + nbytes * per_byte)

    def _economize(self, seconds_per_run: float) -> None:
        """Leave out what there is no time for."""

        def too_long(stage: str, count: int) -> bool:
            runs, seconds = self._plan(count)[stage]
            return runs * seconds_per_run > seconds

        count = len(self._candidates)
        if self._backends and too_long("second look", count):
            self._backends = ()
            self._notes.append(
                "other engines, single_submit and overlap_events are not tried, for the time: "
                "see --time"
            )
        while count > 2 and too_long("search", count):
            count = count * 3 // 4
        if count < len(self._candidates):
            self._notes.append(
                f"{count} of {len(self._candidates)} combinations are tried, for the time: "
                "see --time"
            )
            self._candidates = spread(self._candidates, count)

    def _plan(self, count: int) -> dict[str, tuple[int, float]]:
        """Runs of each stage, with ``count`` candidates in each direction, and their seconds."""
        left = max(self._deadline.left(), 0.0) * FITTED
        ways = len(self._directions)
        final = ways * (FINALISTS * ways + 1) * FINAL_ROUNDS
        stages = {"final": (final, left * (1 - SEARCHING))}
        search = ways * planned_runs(count)
        if not self._backends:
            return {**stages, "search": (search, left * SEARCHING)}
        second = ways * planned_runs(len(self._backends) + 2)
        return {
            **stages,
            "search": (search, left * SEARCHING * FIRST_HALVING),
            "second look": (second, left * SEARCHING * (1 - FIRST_HALVING)),
        }

    def _search(self, direction: str, share: Deadline) -> Direction:
        def measure(options: HandleOptions) -> Sample:
            return self._run("search", direction, options)

        first = share.part(FIRST_HALVING if self._backends else 1.0)
        rankings = [halve(self._candidates, measure, first.passed)]
        best = rankings[0].best(1)
        if self._backends and best:
            changed = [other for options in best for other in variants(options, self._backends)]
            rankings.append(halve([*best, *changed], measure, share.passed))
        if not all(ranking.complete for ranking in rankings):
            self._notes.append(
                f"the search for {direction} ended before it was done, for the time: see --time"
            )
        # The winner of the second look, and the best of the first, which differ in what matters.
        found = unique([*rankings[-1].best(1), *rankings[0].best(FINALISTS)])
        return Direction(rankings, found[:FINALISTS])

    def _compare(self, searches: Mapping[str, Direction]) -> dict[str, list[Entry[HandleOptions]]]:
        """The final: every finalist in every direction, in turn."""
        found = [options for search in searches.values() for options in search.finalists]
        finalists = unique([*found, self._default])
        rounds = Rounds(
            [(direction, options) for options in finalists for direction in self._directions],
            lambda pair: self._run("final", *pair),
            self._deadline.passed,
        )
        if not all(rounds.run(rounds.entries) for _ in range(FINAL_ROUNDS)):
            self._notes.append("the final comparison ended before it was done: see --time")
        if rounds.completed == 0:
            return self._without_final()
        result = {}
        for direction in self._directions:
            here = [entry for entry in rounds.entries if entry.candidate[0] == direction]
            result[direction] = _ranked({entry.candidate[1]: entry.samples for entry in here})
        return result

    def _without_final(self) -> dict[str, list[Entry[HandleOptions]]]:
        """What the runs so far say of those that ran in every direction; the defaults have."""
        everywhere = set.intersection(*(set(samples) for samples in self._samples.values()))
        return {
            direction: _ranked({o: runs for o, runs in samples.items() if o in everywhere})
            for direction, samples in self._samples.items()
        }

    def _choose(self, final: Mapping[str, list[Entry[HandleOptions]]]) -> HandleOptions:
        """The options whose worse direction is nearest to the best of that direction.

        Of those that are alike, the defaults, else the ones with the fewest options that seldom
        matter changed, else with the least processor time.
        """
        nearness: dict[HandleOptions, float] = {}
        cpu: dict[HandleOptions, float] = {}
        for entries in final.values():
            best = max(entry.score for entry in entries)
            for entry in entries:
                options = entry.candidate
                nearness[options] = min(nearness.get(options, 1.0), entry.score / best)
                cpu[options] = cpu.get(options, 0.0) + entry.cpu_per_byte
        if not self._default_is_candidate and len(nearness) > 1:
            del nearness[self._default]  # shown for comparison only
        enough = max(nearness.values()) * (1 - ALIKE)
        alike = [options for options in nearness if nearness[options] >= enough]
        if self._default in alike:
            return self._default
        return min(alike, key=lambda options: (peculiarity(options, self._default), cpu[options]))


def _ranked(samples: Mapping[HandleOptions, list[Sample]]) -> list[Entry[HandleOptions]]:
    """Best first, by the medians that are shown."""
    entries = [Entry(options, runs) for options, runs in samples.items()]
    for entry in entries:
        entry.score = entry.bytes_per_second
    return sorted(entries, key=lambda entry: -entry.score)
