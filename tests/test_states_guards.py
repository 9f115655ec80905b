"""While states are empty nothing steps on them or saves them by mistake."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from pinned_manager.states import offload_states, release, reload_states
from support.states import picture, small_model, tensors_of, train


def training() -> tuple[torch.nn.Module, Any]:
    model = small_model(8)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, range(1))
    return model, optimizer


def test_step_and_checkpoints_are_refused(disk: Path) -> None:
    model, optimizer = training()
    before = picture(tensors_of(optimizer))
    offload_states((optimizer, model), device="nvme", nvme_path=disk)
    for call in (optimizer.step, optimizer.state_dict, model.state_dict):
        with pytest.raises(RuntimeError, match="reload_states"):
            call()
    with pytest.raises(RuntimeError, match="reload_states"):
        torch.nn.Sequential(model).state_dict()
    reload_states(optimizer)
    assert picture(tensors_of(optimizer)) == before  # not a step counted
    optimizer.state_dict()
    model.state_dict()
    train(model, optimizer, range(1))


def test_only_what_needs_the_empty_ones_is_refused(disk: Path) -> None:
    model, optimizer = training()
    offload_states((optimizer, model), ["optim_states"], "nvme", nvme_path=disk)
    assert model.state_dict()["0.weight"].shape == (8, 8)
    with pytest.raises(RuntimeError, match="optim_states"):
        optimizer.state_dict()
    offload_states((optimizer, model), ["hp_params"], "nvme", nvme_path=disk)
    with pytest.raises(RuntimeError, match="hp_params"):
        model.state_dict()
    offload_states((optimizer, model), ["optim_states"], "cpu")  # out of the file: can be read
    assert optimizer.state_dict()["state"]
    with pytest.raises(RuntimeError, match=r"these are offloaded: hp_params;"):
        optimizer.step()


def test_nothing_is_left_on_the_objects(disk: Path) -> None:
    model, optimizer = training()

    def hooks() -> list[int]:
        return [
            len(optimizer._optimizer_step_pre_hooks),
            len(optimizer._optimizer_state_dict_pre_hooks),
            len(model._state_dict_pre_hooks),
        ]

    none = hooks()
    for _ in range(2):
        offload_states((optimizer, model), device="nvme", nvme_path=disk)
        offload_states((optimizer, model), device="nvme", nvme_path=disk)
        assert hooks() == [count + 1 for count in none]
        reload_states(optimizer)
        assert hooks() == none
    offload_states((optimizer, model))
    assert hooks() == none
    offload_states((optimizer, model), device="nvme", nvme_path=disk)
    release(optimizer)
    assert hooks() == none
    copy.deepcopy(optimizer).step()


def test_what_is_in_host_memory_can_be_saved() -> None:
    model, optimizer = training()
    expected = copy.deepcopy(optimizer.state_dict()["state"][0]["exp_avg"])
    offload_states((optimizer, model))
    assert torch.equal(optimizer.state_dict()["state"][0]["exp_avg"], expected)
    model.state_dict()
    train(model, optimizer, range(1))
