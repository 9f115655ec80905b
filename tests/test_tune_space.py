"""Sweep files mean what they mean to DeepSpeed; bad ones are refused with what they may have."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio.options import HandleOptions
from aio.tune.space import (
    SweepError,
    spread,
    sweep_options,
    usual_options,
    variants,
    without_twins,
)

# DeepSpeed's own default sweep.
DEEPSPEED = {
    "block_size": ["1M", "8M"],
    "queue_depth": [32, 128],
    "sequential_requests": [True, False],
    "single_submit": [False, True],
    "io_parallel": [1, 2, 4, 8],
}


def sweep(tmp_path: Path, content: Any) -> list[HandleOptions]:
    path = tmp_path / "sweep.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return sweep_options(str(path), "posix")


def test_deepspeeds_sweep(tmp_path: Path) -> None:
    wanted = {
        HandleOptions(block << 20, depth, single, not sequential, workers, "posix")
        for block, depth, sequential, single, workers in itertools.product(
            (1, 8), (32, 128), (True, False), (False, True), (1, 2, 4, 8)
        )
    }
    found = sweep(tmp_path, DEEPSPEED)
    assert len(found) == 64
    assert set(found) == wanted


def test_what_a_sweep_leaves_out_is_the_default(tmp_path: Path) -> None:
    assert sweep(tmp_path, {"queue_depth": [7]}) == [HandleOptions(queue_depth=7, backend="posix")]


def test_sequential_requests_do_not_overlap(tmp_path: Path) -> None:
    (options,) = sweep(tmp_path, {"sequential_requests": [True]})
    assert not options.overlap_events


@given(
    block_sizes=st.lists(st.integers(1, 2**40), min_size=1, max_size=4, unique=True),
    depths=st.lists(st.integers(1, 2**14), min_size=1, max_size=4, unique=True),
    overlap=st.lists(st.booleans(), min_size=1, max_size=2, unique=True),
)
def test_every_combination_once(
    tmp_path: Path, block_sizes: list[int], depths: list[int], overlap: list[bool]
) -> None:
    content = {"block_size": block_sizes, "queue_depth": depths, "overlap_events": overlap}
    found = sweep(tmp_path, content)
    wanted = itertools.product(block_sizes, depths, overlap)
    assert [(o.block_size, o.queue_depth, o.overlap_events) for o in found] == list(wanted)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "no sweep file"),
        ("[" * 100_000, "no sweep file"),
        ("[]", "must be an object"),
        ({}, "must be an object"),
        ({"thread_count": [1]}, "thread_count.*io_parallel"),
        ({"block_size": "1M"}, "list of values"),
        ({"block_size": []}, "list of values"),
        ({"block_size": ["1Q"]}, "1Q"),
        ({"block_size": [True]}, "True"),
        ({"queue_depth": [0]}, "0"),
        ({"queue_depth": [1.5]}, "1.5"),
        ({"single_submit": ["true"]}, "'true'"),
        ({"backend": ["auto"]}, "auto.*io_uring"),
        ({"backend": [[]]}, r"\[\]"),
        ({"block_size": [*range(1, 400)], "queue_depth": [*range(1, 400)]}, "159201 combinations"),
        ({"io_parallel": [1], "intra_op_parallelism": [2]}, "twice"),
    ],
)
def test_bad_sweep_files(tmp_path: Path, content: Any, words: str) -> None:
    with pytest.raises(SweepError, match=words) as caught:
        sweep(tmp_path, content)
    assert "sweep.json" in str(caught.value)


@given(
    depths=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    nbytes=st.integers(1, 1 << 30),
    workers=st.integers(1, 8),
)
def test_depths_that_cannot_be_filled_are_tried_once(
    depths: list[int], nbytes: int, workers: int
) -> None:
    candidates = [HandleOptions(queue_depth=d, intra_op_parallelism=workers) for d in depths]
    left = without_twins(candidates, nbytes)
    most = -(-nbytes // ((1 << 20) * workers))
    assert sorted(min(o.queue_depth, most) for o in left) == sorted({min(d, most) for d in depths})
    assert set(left) <= set(candidates)
    for options in left:  # the least depth of those that are alike stays
        twins = [depth for depth in depths if min(depth, most) == min(options.queue_depth, most)]
        assert options.queue_depth == min(twins)


def test_the_usual_options_have_the_defaults_and_no_double() -> None:
    usual = usual_options("posix")
    assert HandleOptions(backend="posix") in usual
    assert len(set(usual)) == len(usual)


def test_variants_change_one_option_each() -> None:
    options = HandleOptions(4096, 8, False, True, 2, "libaio")
    changed = [
        vars(other).items() ^ vars(options).items()
        for other in variants(options, ["libaio", "posix"])
    ]
    assert [{name for name, _ in change} for change in changed] == [
        {"backend"},
        {"single_submit"},
        {"overlap_events"},
    ]


@given(st.integers(0, 60), st.integers(1, 60))
def test_a_sample_of_the_candidates(total: int, count: int) -> None:
    candidates = [HandleOptions(queue_depth=depth + 1) for depth in range(total)]
    chosen = spread(candidates, count)
    assert len(chosen) == min(total, count)
    assert [option for option in candidates if option in set(chosen)] == chosen
