"""A training that is moved away between steps goes on bit for bit as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pinned_manager.states import OffloadStateTypeEnum, offload_states, reload_states
from support.states import PLACES, picture, small_model, tensors_of, train

OPTIMIZERS: dict[str, Any] = {
    "Adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, foreach=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "Adadelta": torch.optim.Adadelta,
    "NAdam": torch.optim.NAdam,
    "Rprop": torch.optim.Rprop,
    "ASGD": torch.optim.ASGD,
    "Adafactor": getattr(torch.optim, "Adafactor", None),  # of torch 2.5
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, history_size=3, max_iter=3),
}


def made(name: str) -> tuple[torch.nn.Module, Any]:
    model = small_model(16)
    if OPTIMIZERS[name] is None:
        pytest.skip(f"torch {torch.__version__} has no {name}")
    return model, OPTIMIZERS[name](list(model.parameters()))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_if_nothing_had_moved(disk: Path, name: str, place: str) -> None:
    model, optimizer = made(name)
    expected = train(model, optimizer, range(6))
    wanted = [tensor.octets for tensor in picture(tensors_of(optimizer)).values()]
    model, optimizer = made(name)
    losses = train(model, optimizer, range(3))
    offload_states(optimizer, device=place, nvme_path=disk)
    reload_states(optimizer)
    losses += train(model, optimizer, range(3, 6))
    assert losses == expected
    assert [tensor.octets for tensor in picture(tensors_of(optimizer)).values()] == wanted


@pytest.mark.parametrize("place", PLACES)
def test_every_step(disk: Path, place: str) -> None:
    """The states before there are any, and another kind at each step."""
    model, optimizer = made("Adam")
    expected = train(model, optimizer, range(6))
    model, optimizer = made("Adam")
    losses = []
    for step, kind in enumerate([None, *OffloadStateTypeEnum]):
        offload_states(optimizer, None if kind is None else [kind], place, nvme_path=disk)
        reload_states(optimizer)
        losses += train(model, optimizer, range(step, step + 1))
    assert losses == expected


def test_in_pinned_host_memory() -> None:
    """On a host without a device an offloaded training can go on where it is."""
    model, optimizer = made("AdamW")
    expected = train(model, optimizer, range(6))
    model, optimizer = made("AdamW")
    losses = train(model, optimizer, range(2))
    offload_states(optimizer)
    losses += train(model, optimizer, range(2, 4))
    reload_states(optimizer)
    assert losses + train(model, optimizer, range(4, 6)) == expected


@pytest.mark.parametrize("place", PLACES)
def test_hooks_and_graphs_survive(disk: Path, place: str) -> None:
    model = small_model(8)
    optimizer = torch.optim.SGD(model.parameters())
    weight = model[3].weight
    called: list[str] = []
    weight.register_hook(lambda gradient: called.append("gradient"))
    weight.register_post_accumulate_grad_hook(lambda parameter: called.append("accumulated"))
    accumulator = weight.expand_as(weight).grad_fn.next_functions[0][0]
    accumulator.register_hook(lambda *_: called.append("accumulator"))
    for _ in range(2):
        called.clear()
        train(model, optimizer, range(1))
        assert sorted(called) == ["accumulated", "accumulator", "gradient"]
        offload_states(optimizer, device=place, nvme_path=disk)
        reload_states(optimizer)
    loss = model(torch.ones(1, 8)).sum()
    offload_states((optimizer, model), device=place, nvme_path=disk)
    reload_states(optimizer)
    optimizer.zero_grad()
    loss.backward()  # a graph from before the move
    assert torch.equal(model[3].bias.grad, torch.ones(8))
