"""One lucky run, or a slow minute, crowns nobody: the tuner's search on a machine made of noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio.measure.harness import Sample
from aio.tune.search import Ranking, Rounds, halve, planned_runs

SEEDS = 100


class NoisyMachine:
    """Candidates have true rates; a run shows one times noise, drift, and now and then luck."""

    def __init__(self, seed: int, candidates: int, drift: float = 0.0, period: float = 40) -> None:
        self._random = random.Random(seed)
        self.rates = [self._random.uniform(0.4, 1.0) for _ in range(candidates)]
        self._drift, self._period = drift, period
        self.runs = 0

    def measure(self, candidate: int) -> Sample:
        self.runs += 1
        noise = self._random.lognormvariate(0, 0.07)
        luck = self._random.choice([0.4, 1.5]) if self._random.random() < 0.05 else 1.0
        weather = 1 + self._drift * math.sin(self.runs / self._period)
        return Sample(1 / (self.rates[candidate] * noise * luck * weather), 1, 0.0)

    def share_of_best(self, candidate: int) -> float:
        return self.rates[candidate] / max(self.rates)


def never() -> bool:
    return False


@pytest.mark.parametrize(("drift", "period"), [(0.0, 1), (0.3, 40), (0.3, 10)])
@pytest.mark.parametrize("candidates", [6, 23, 48])
def test_the_best_or_one_like_it_is_found(candidates: int, drift: float, period: float) -> None:
    shares = []
    for seed in range(SEEDS):
        machine = NoisyMachine(seed, candidates, drift, period)
        found = halve(range(candidates), machine.measure, never)
        assert machine.runs == planned_runs(candidates)
        shares.append(machine.share_of_best(found.entries[0].candidate))
    assert sum(share >= 0.95 for share in shares) >= 0.95 * SEEDS
    assert min(shares) > 0.85


def test_the_same_machine_fools_a_sweep_that_runs_each_once() -> None:
    fooled = 0
    for seed in range(SEEDS):
        machine = NoisyMachine(seed, 23)
        rates = {candidate: 1 / machine.measure(candidate).seconds for candidate in range(23)}
        fooled += machine.share_of_best(max(rates, key=rates.__getitem__)) < 0.95
    assert fooled > SEEDS / 5


def steady(rates: dict[str, float]) -> Callable[[str], Sample]:
    return lambda candidate: Sample(1 / rates[candidate], 1, 0.0)


def test_a_lucky_run_does_not_win() -> None:
    lucky = iter([100.0])
    rates = {"good": 1.0, "poor": 0.5, "poorer": 0.4}

    def measure(candidate: str) -> Sample:
        rate = next(lucky, 0.5) if candidate == "poor" else rates[candidate]
        return Sample(1 / rate, 1, 0.0)

    assert halve(list(rates), measure, never).best(1) == ["good"]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40, unique=True))
def test_without_noise_the_fastest_is_first(rates: list[int]) -> None:
    found = halve(rates, lambda rate: Sample(1 / rate, 1, 0.0), never)
    assert found.complete
    assert found.best(1) == [max(rates)]
    assert sorted(entry.candidate for entry in found.entries) == sorted(rates)


def test_every_one_that_is_left_runs_once_in_each_round_in_turn() -> None:
    order: list[str] = []

    def measure(candidate: str) -> Sample:
        order.append(candidate)
        return Sample(1.0, 1, 0.0)

    rounds = Rounds(["a", "b", "c"], measure, never)
    for _ in range(3):
        assert rounds.run(rounds.entries)
    assert "".join(order) == "abcbcacab"


@given(candidates=st.integers(1, 30), runs=st.integers(0, 400))
def test_nothing_starts_once_the_time_is_up(candidates: int, runs: int) -> None:
    done: list[int] = []

    def measure(candidate: int) -> Sample:
        done.append(candidate)
        return Sample(1 / (candidate + 1), 1, 0.0)

    found = halve(range(candidates), measure, lambda: len(done) >= runs)
    assert len(done) == min(runs, planned_runs(candidates))
    assert found.complete == (runs >= planned_runs(candidates))
    if runs >= candidates:  # a whole round tells them apart
        assert found.best(1) == [candidates - 1]
    elif done:
        assert found.best(1) == [max(done)]
    else:
        assert found.best(1) == []


def test_a_round_that_was_cut_short_does_not_count_beside_whole_ones() -> None:
    rates = iter([1.2, 1.1, 1.0, 10.0, 1.0])  # a b c, and then b c
    runs: list[str] = []

    def measure(candidate: str) -> Sample:
        runs.append(candidate)
        return Sample(1 / next(rates), 1, 0.0)

    found: Ranking[str] = halve(["a", "b", "c"], measure, lambda: len(runs) == 5)
    assert runs == ["a", "b", "c", "b", "c"]
    assert not found.complete
    assert found.best(1) == ["a"]
