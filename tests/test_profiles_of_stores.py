"""Stores take the profile of their directories by themselves; a bad one costs nothing but speed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import aio
from aio.options import HandleOptions
from aio.swap import SwappedOptimizer, SwapStore
from support.profiles import TUNED, options_of, saved

pytestmark = pytest.mark.usefixtures("own_profiles")


def options_of_store(store: SwapStore) -> HandleOptions:
    assert store._core._own_handle is not None
    return options_of(store._core._own_handle)


DEFAULTS = HandleOptions(backend=aio.available_backends()[0])


def test_a_store_has_the_profile_of_its_directory(directory: Path) -> None:
    saved(directory)
    with SwapStore(directory / "new" / "place") as store:
        assert options_of_store(store) == TUNED
        store.put("x", [torch.arange(100_000)]).result()
        assert torch.equal(store.get("x").result()[0], torch.arange(100_000))


def test_an_optimizer_has_it_too(directory: Path) -> None:
    saved(directory)
    parameter = torch.nn.Parameter(torch.ones(10))
    with SwappedOptimizer([parameter], torch.optim.Adam, swap_dir=directory) as optimizer:
        assert options_of_store(optimizer._store) == TUNED


def test_a_store_on_several_drives_takes_their_common_one(disk: Path, tmpfs: Path) -> None:
    saved(disk)
    saved(tmpfs)
    with SwapStore([disk, tmpfs], bandwidths=[1, 1]) as store:
        assert options_of_store(store) == DEFAULTS
    saved(disk, tmpfs)
    with SwapStore([disk, tmpfs], bandwidths=[1, 1]) as store:
        assert options_of_store(store) == TUNED


def test_the_callers_handle_stays_as_it_is(directory: Path) -> None:
    saved(directory)
    with aio.aio_handle(queue_depth=3) as handle, SwapStore(directory, handle) as store:
        assert store._core._own_handle is None
        assert handle.get_queue_depth() == 3


def test_profiles_can_be_turned_off(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(directory)
    monkeypatch.setenv("DEEPNVME_PROFILES", "off")
    with SwapStore(directory) as store:
        assert options_of_store(store) == DEFAULTS
    monkeypatch.setenv("DEEPNVME_PROFILES", "maybe")
    with pytest.raises(ValueError, match=r"DEEPNVME_PROFILES.*maybe"):
        SwapStore(directory)
    assert os.listdir(directory) == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:-20], "no profile"),
        (lambda text: text.replace('"queue_depth": 7', '"queue_depth": 0'), "queue_depth is 0"),
        (lambda text: text.replace('"version": 1', '"version": 9'), "version 9"),
        (lambda text: text.replace('"file_system"', '"fs"'), "other drives"),
    ],
)
def test_a_bad_profile_costs_a_store_nothing_but_speed(
    directory: Path,
    damage: Callable[[str], str],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = saved(directory)
    path.write_text(damage(path.read_text()))
    with SwapStore(directory) as store:
        assert options_of_store(store) == DEFAULTS
    assert "defaults are used instead" in caplog.text
    assert words in caplog.text
