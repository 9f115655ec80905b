"""The harness takes contestants in turn, keeps every sample, and compares by medians."""

from __future__ import annotations

import ctypes
import errno
import os
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio.measure import files
from aio.measure.harness import (
    BenchError,
    Contestant,
    Sample,
    compare,
    percentile,
    run_rounds,
    time_calls,
)

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
    assert series.median_cores() == pytest.approx(0.5 * statistics.median(rates))
    assert series.median_latency("p50") is None


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=9))
def test_ratio(pairs: list[tuple[float, float]]) -> None:
    ours, others = zip(*pairs, strict=True)
    ratio = compare(ours, others)
    assert ratio.of_medians == pytest.approx(statistics.median(ours) / statistics.median(others))
    assert ratio.median_of_rounds == pytest.approx(statistics.median(a / b for a, b in pairs))
    assert ratio.lower <= ratio.upper
    assert (ratio.lower, ratio.upper) == tuple(sorted((ratio.of_medians, ratio.median_of_rounds)))


def test_a_ratio_in_words() -> None:
    assert str(compare([2, 4], [1, 3])) == "1.500 / 1.667"


def test_latencies_of_a_series_are_of_the_rounds_that_have_one() -> None:
    left = [Sample(1.0, 1, 0.5, mode=mode, p99=p99) for mode, p99 in (("a", 3.0), ("b", None))]
    series = run_rounds([Contestant("one", iter(left).__next__)], len(left))["one"]
    assert (series.median_latency("p99"), series.median_latency("p50")) == (3.0, None)
    assert series.mode == "b"


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0, 1))
def test_a_percentile_has_its_share_below(values: list[float], fraction: float) -> None:
    found = percentile(values, fraction)
    assert found in values
    assert sum(value < found for value in values) <= fraction * len(values)


def test_single_calls_are_timed_in_turn() -> None:
    calls: list[str] = []
    timed = time_calls(
        [(name, name * 2, lambda name=name: calls.append(name)) for name in "ab"], 2, 3
    )
    assert calls == list("aaabbbbbbaaa")
    for name in "ab":
        one = timed[name]
        assert (one.name, one.mode, len(one.seconds)) == (name, name * 2, 6)
        assert one.round_medians == [statistics.median(one.seconds[i : i + 3]) for i in (0, 3)]
        assert one.median == statistics.median(one.seconds)


@pytest.mark.parametrize("nbytes", [8192, 5000])
def test_files_to_read_are_random_and_of_the_size_asked(disk: Path, nbytes: int) -> None:
    paths = files.prepare_files(disk / "new", 3, nbytes)
    assert [path.name for path in paths] == ["t.0", "t.1", "t.2"]
    assert [path.stat().st_size for path in paths] == [nbytes] * 3
    assert len({path.read_bytes() for path in paths}) == 3


def test_a_file_that_could_not_be_prepared_whole(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *arguments: 1)
    with pytest.raises(BenchError, match="short write"):
        files.prepare_files(disk / "new", 1, 4096)


@pytest.mark.parametrize("nbytes", [(16 << 20) + 4096, 4096])
def test_a_file_where_direct_io_is_refused_is_prepared_without(
    disk: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    real = os.open

    def refuse(path: Path, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    path = files.prepare_file(disk / "file", nbytes)
    data = path.read_bytes()
    assert len(data) == nbytes
    assert len(set(data[-4096:])) > 200  # random to its end


def test_a_share_that_the_kernel_does_not_tell(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> int:
        ctypes.set_errno(errno.ENOMEM)
        return -1

    path = files.prepare_file(disk / "file", 8192)
    monkeypatch.setattr(files, "_libc", SimpleNamespace(mincore=fail))
    with pytest.raises(OSError, match="Cannot allocate memory") as raised:
        files.resident_share(path)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOMEM, str(path))


@pytest.mark.parametrize("direct", [True, False])
def test_what_cannot_be_opened_is_said_at_once(tmp_path: Path, direct: bool) -> None:
    with pytest.raises(FileNotFoundError):
        files._open(tmp_path / "none" / "file", os.O_WRONLY | os.O_CREAT, direct)
