"""The tuner keeps its time, and finds the best for reading, for writing and for both."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio.measure.harness import BenchError
from aio.options import HandleOptions
from aio.tune.session import Deadline, Findings, Session
from support.tuning import FakeDrive

BOTH = ("read", "write")
ENGINES = ("io_uring", "libaio")
CANDIDATES = [
    HandleOptions(block_size, depth, intra_op_parallelism=workers, backend="io_uring")
    for block_size, depth, workers in itertools.product((1 << 18, 1 << 20), (8, 32, 128), (1, 2))
]
DEFAULT = HandleOptions(backend="io_uring")


def tune(
    drive: FakeDrive,
    seconds: float = 90.0,
    directions: tuple[str, ...] = BOTH,
    backends: tuple[str, ...] = ENGINES,
) -> Findings:
    deadline = Deadline(seconds, drive.clock)
    return Session(drive, directions, CANDIDATES, backends, deadline).run()


def favouring(read: HandleOptions, write: HandleOptions) -> FakeDrive:
    """A drive that does 10 GB/s, and twice that with one set of options for each direction."""
    best = {"read": read, "write": write}
    return FakeDrive(lambda direction, options: 2e10 if options == best[direction] else 1e10)


def test_each_direction_has_an_optimum_of_its_own() -> None:
    read, write = CANDIDATES[0], CANDIDATES[5]
    found = tune(favouring(read, write))
    assert found.best == {"read": read, "write": write}
    assert found.bytes_per_second("read", read) == pytest.approx(2e10)
    assert found.bytes_per_second("write", read) == pytest.approx(1e10)
    assert found.notes == []


def test_one_handle_loses_least_in_its_worse_direction() -> None:
    reader, writer, even = CANDIDATES[0], CANDIDATES[3], CANDIDATES[7]
    rates = {
        (reader, "read"): 10e9, (reader, "write"): 1.4e9,  # the best sums, also of shares
        (writer, "read"): 1e9, (writer, "write"): 2e9,
        (even, "read"): 8.2e9, (even, "write"): 1.64e9,
    }  # fmt: skip
    found = tune(FakeDrive(lambda way, options: rates.get((options, way), 0.4e9)))
    assert found.best == {"read": reader, "write": writer}
    assert found.both == even


def test_an_option_that_seldom_matters_is_found_where_it_does() -> None:
    wanted = replace(CANDIDATES[4], backend="libaio", single_submit=False)
    drive = FakeDrive(
        lambda direction, options: (
            (2e9 if replace(options, backend="io_uring") == CANDIDATES[4] else 1e9)
            * (1.5 if options.backend == "libaio" else 1.0)
        )
    )
    assert tune(drive).both == wanted


def test_where_all_are_alike_the_defaults_stay() -> None:
    jitter = random.Random(3)
    drive = FakeDrive(lambda direction, options: 1e9 * jitter.uniform(0.995, 1.005))
    found = tune(drive)
    assert found.both == DEFAULT
    assert set(found.best.values()) == {DEFAULT}


def test_defaults_that_are_no_candidate_are_shown_and_not_chosen() -> None:
    drive = FakeDrive(lambda direction, options: 2e9 if options == DEFAULT else 1e9)
    others = [options for options in CANDIDATES if options != DEFAULT]
    found = Session(drive, BOTH, others, (), Deadline(90, drive.clock)).run()
    assert found.both in others
    assert set(found.best.values()) <= set(others)
    assert found.default == DEFAULT
    assert found.final["read"][0].candidate == DEFAULT


def test_of_those_that_are_alike_the_one_with_less_cpu_is_taken() -> None:
    fast = CANDIDATES[2:4]
    drive = FakeDrive(
        lambda direction, options: 2e9 if options in fast else 1e9,
        cpu=lambda direction, options: 1e-9 if options == fast[1] else 2e-9,
    )
    assert tune(drive, backends=()).both == fast[1]


@pytest.mark.parametrize("direction", BOTH)
def test_one_direction_alone(direction: str) -> None:
    drive = favouring(CANDIDATES[0], CANDIDATES[5])
    found = tune(drive, directions=(direction,))
    assert {run[0] for run in drive.runs} == {direction}
    assert found.both == found.best[direction] == CANDIDATES[0 if direction == "read" else 5]


@given(
    seconds=st.floats(0.5, 200),
    rate=st.floats(1e8, 3e10),
    overhead=st.floats(0, 0.2),
    seed=st.integers(0, 9),
)
def test_the_time_is_kept(seconds: float, rate: float, overhead: float, seed: int) -> None:
    """No run starts after the end, so that at most one is over it; there is always an answer, once
    every direction was measured.
    """
    speeds = random.Random(seed)
    drive = FakeDrive(lambda way, options: rate * speeds.uniform(0.3, 1.0), overhead=overhead)
    try:
        found = tune(drive, seconds)
    except BenchError as error:
        refusal = str(error)
        found = None
    if found is None:
        assert "--time" in refusal
        assert len(drive.runs) == 1
        assert drive.runs[0][3] >= seconds
        return
    assert all(start < seconds for _, _, start, _ in drive.runs)
    for direction in BOTH:
        assert found.entry(direction, found.both).samples
        assert found.entry(direction, found.default).samples
        assert found.best[direction] in [entry.candidate for entry in found.final[direction]]


@given(seconds=st.floats(30, 200), rate=st.floats(5e8, 3e10))
def test_with_time_enough_the_search_comes_to_its_end(seconds: float, rate: float) -> None:
    """Runs are made smaller until it does, whatever the drive."""
    drive = FakeDrive(lambda direction, options: rate * (0.8 if options.queue_depth < 32 else 1))
    found = tune(drive, seconds)
    rankings = [ranking for search in found.searches.values() for ranking in search.rankings]
    assert all(ranking.complete for ranking in rankings)
    assert len(found.final["read"][0].samples) == 9
    if drive.nbytes < 400 << 20:
        assert "instead of 400 MiB" in found.notes[0]


def test_a_slow_drive_gets_fewer_candidates_and_says_so() -> None:
    found = tune(FakeDrive(lambda direction, options: 1e8), seconds=60)
    assert any("combinations are tried" in note for note in found.notes)
    assert any(note.startswith("each run moves 32 MiB") for note in found.notes)


def test_a_drive_that_is_ready_just_once_in_each_direction() -> None:
    drive = FakeDrive(lambda direction, options: 4e8)  # a second for each run
    found = tune(drive, seconds=1.5)
    assert [run[0] for run in drive.runs[:2]] == ["read", "write"]
    assert all(when >= 2.0 for _, _, when, _ in drive.runs[2:])
    assert set(found.best) == {"read", "write"}


def test_what_the_work_raises_comes_through() -> None:
    def fails(direction: str, options: HandleOptions) -> float:
        raise BenchError("half of the bytes")

    with pytest.raises(BenchError, match="half of the bytes"):
        tune(FakeDrive(fails))


def test_of_those_that_are_alike_the_usual_engine_stays() -> None:
    """A variant that is no faster is not taken for its luck, nor for its processor time."""
    drive = FakeDrive(
        lambda direction, options: (
            (2e9 if options.block_size == 1 << 18 else 1e9)
            * (1.01 if options.backend == "libaio" else 1.0)
        ),
        cpu=lambda direction, options: 1e-9 if options.backend == "libaio" else 2e-9,
    )
    assert tune(drive).both.backend == "io_uring"


def test_runs_are_not_too_short_to_say_anything() -> None:
    """On a fast drive 32 MiB are gone in a few milliseconds."""
    drive = FakeDrive(lambda direction, options: 10e9, nbytes=4 << 30)
    tune(drive, seconds=10)
    assert drive.nbytes >= 0.03 * 10e9 - (1 << 20)


def test_first_runs_do_not_say_how_fast_the_drive_is() -> None:
    """Something is always slow the first time."""
    seen: set[str] = set()

    def rate(direction: str, options: HandleOptions) -> float:
        first = direction not in seen
        seen.add(direction)
        return 1e9 if first else 20e9

    assert tune(FakeDrive(rate)).notes == []


@pytest.mark.parametrize("hundredths", range(182, 206))
def test_what_ran_in_one_direction_alone_is_not_chosen_for_both(hundredths: int) -> None:
    """Where writing is slow, the time may be up before a good reader has written.

    The first look takes 1.8 s here, each further write 0.08 s.
    """
    drive = FakeDrive(
        lambda direction, options: (
            0.5e9 if direction == "write" else 10e9 * (1 + CANDIDATES.index(options))
        )
    )
    found = tune(drive, seconds=hundredths / 100)
    ways = {direction for direction, options, _, _ in drive.runs if options == found.both}
    assert ways == set(BOTH)


def test_other_engines_are_left_out_where_there_is_no_time() -> None:
    drive = FakeDrive(lambda direction, options: 3e8)
    found = tune(drive, seconds=25)
    assert any(note.startswith("other engines") for note in found.notes)
    assert {options.backend for _, options, _, _ in drive.runs} == {"io_uring"}
