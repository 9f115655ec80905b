"""The harness takes contestants in turn, keeps every sample, and compares by medians."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio.measure.harness import Contestant, Sample, compare, run_rounds

RATES = st.lists(st.floats(0.1, 100), min_size=1, max_size=9)


def sample(rate: float, nbytes: int = 10**9) -> Sample:
    return Sample(nbytes / 1e9 / rate, nbytes, cpu_seconds=0.5)


@given(rounds=st.integers(1, 6), count=st.integers(1, 4), attempts=st.integers(1, 3))
def test_everyone_runs_once_a_round_and_the_order_rotates(
    rounds: int, count: int, attempts: int
) -> None:
    calls: list[int] = []
    warmed: list[int] = []

    def contestant(number: int) -> Contestant:
        def run() -> Sample:
            calls.append(number)
            return sample(1 + len(calls))

        return Contestant(str(number), run, attempts, lambda: warmed.append(number))

    series = run_rounds([contestant(number) for number in range(count)], rounds)
    expected = []
    for number in range(rounds):
        order = [(number + place) % count for place in range(count)]
        expected += [who for who in order for _ in range(attempts)]
    assert calls == expected
    assert warmed == list(range(count))
    for entry in series.values():
        assert [len(tries) for tries in entry.all] == [attempts] * rounds
        best = [max(tries, key=lambda run: run.gb_per_second) for tries in entry.all]
        assert entry.kept == best


@given(RATES)
def test_figures_of_a_series(rates: list[float]) -> None:
    left = [sample(rate) for rate in rates]
    series = run_rounds([Contestant("one", iter(left).__next__)], len(left))["one"]
    assert series.median_rate() == pytest.approx(statistics.median(rates))
    assert series.median_cpu_per_gb() == pytest.approx(0.5)


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=9))
def test_ratio(pairs: list[tuple[float, float]]) -> None:
    ours, others = zip(*pairs, strict=True)
    ratio = compare(ours, others)
    assert ratio.of_medians == pytest.approx(statistics.median(ours) / statistics.median(others))
    assert ratio.median_of_rounds == pytest.approx(statistics.median(a / b for a, b in pairs))
    assert ratio.lower <= ratio.upper
