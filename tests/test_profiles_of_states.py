"""States that are offloaded take the profile of the drive that they go to, and come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from aio.options import HandleOptions
from pinned_manager.states import nvme, offload_states, reload_states
from support.profiles import TUNED, options_of, saved

pytestmark = pytest.mark.usefixtures("own_profiles")


def training() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.arange(5000.0))])


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[HandleOptions]:
    """The options of the handles that moves have made."""
    made: list[HandleOptions] = []
    new_handle = nvme._new_handle

    def noted(directories: Any) -> Any:
        handle = new_handle(directories)
        made.append(options_of(handle))
        return handle

    monkeypatch.setattr(nvme, "_new_handle", noted)
    return made


def test_both_ways(directory: Path, used: list[HandleOptions]) -> None:
    saved(directory)
    optimizer = training()
    offload_states(optimizer, device="nvme", nvme_path=directory)
    reload_states(optimizer)
    assert used == [TUNED, TUNED]
    assert torch.equal(optimizer.param_groups[0]["params"][0], torch.arange(5000.0))


def test_without_one(directory: Path, used: list[HandleOptions]) -> None:
    optimizer = training()
    offload_states(optimizer, device="nvme", nvme_path=directory)
    reload_states(optimizer)
    assert used == 2 * [HandleOptions(backend=aio.available_backends()[0])]


def test_a_switch_that_says_nothing_leaves_the_states_where_they_are(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = training()
    monkeypatch.setenv("DEEPNVME_PROFILES", "maybe")
    with pytest.raises(ValueError, match=r"DEEPNVME_PROFILES.*maybe"):
        offload_states(optimizer, device="nvme", nvme_path=directory)
    assert torch.equal(optimizer.param_groups[0]["params"][0], torch.arange(5000.0))
    assert list(directory.iterdir()) == []
