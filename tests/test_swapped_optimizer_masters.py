"""float32 masters of half-precision parameters live with the states; the model is the optimizer on
float32 copies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aio.swap import SwappedOptimizer
from support.swapped import bits, give_gradients, made_parameters, parameter_bits, state_bits, twins
from support.torch_optimizers import OPTIMIZERS

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = ((300,), (), (7, 9), (1,), (40, 30))


def half_parameters(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(p.detach().to(dtype)) for p in made_parameters(*SHAPES)]
    return [*made, *made_parameters((11,), seed=1)]  # a float32 one has no master


class WithMasters:
    """The plain optimizer on float32 copies."""

    def __init__(self, params: list[Any], cls: Any, kwargs: dict[str, Any]) -> None:
        self.params = params
        self.masters = [torch.nn.Parameter(p.detach().float()) for p in params]
        self.optimizer = cls(self.masters, **kwargs)

    def step(self) -> None:
        for master, param in zip(self.masters, self.params, strict=True):
            master.grad = None if param.grad is None else param.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for master, param in zip(self.masters, self.params, strict=True):
                param.copy_(master)


@pytest.mark.parametrize(("cls", "kwargs"), OPTIMIZERS)
@given(
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    sub_group_bytes=st.sampled_from([1, 5000, 1 << 20]),
    cache_bytes=st.sampled_from([0, 5000]),
    missing=st.lists(st.integers(0, 63), min_size=3, max_size=3),
)
@settings(max_examples=5)
def test_masters(
    disk: Path,
    cls: Any,
    kwargs: dict[str, Any],
    dtype: torch.dtype,
    sub_group_bytes: int,
    cache_bytes: int,
    missing: list[int],
) -> None:
    if cls is torch.optim.SGD and kwargs.get("fused"):
        missing = [0, 0, 0]  # torch's own refuses a first gradient after the first step
    params = half_parameters(dtype)
    model = WithMasters(twins(params), cls, kwargs)
    with SwappedOptimizer(
        params,
        cls,
        swap_dir=disk,
        sub_group_bytes=sub_group_bytes,
        cache_bytes=cache_bytes,
        master_weights=True,
        **kwargs,
    ) as swapped:
        for step, without in enumerate(missing):
            give_gradients(params, step, without)
            give_gradients(model.params, step, without)
            swapped.step()
            model.step()
            assert parameter_bits(params) == parameter_bits(model.params)
        saved = swapped.state_dict()
    for index, master in enumerate(model.masters):
        mine = dict(saved["state"].get(index, {}))
        if "master_weight" in mine:
            assert bits(mine.pop("master_weight")) == bits(master.detach())
        assert bits(mine) == bits(dict(model.optimizer.state.get(master, {})))


def test_a_checkpoint_has_the_masters(disk: Path) -> None:
    params = half_parameters(torch.bfloat16)
    model = WithMasters(twins(params), torch.optim.AdamW, {"lr": 1e-4})
    how: dict[str, Any] = {"lr": 1e-4, "swap_dir": disk, "master_weights": True}
    with SwappedOptimizer(params, torch.optim.AdamW, **how) as first:
        for step in range(3):
            give_gradients(params, step)
            give_gradients(model.params, step)
            first.step()
            model.step()
        first.save(disk / "checkpoint")
        before = state_bits(first)
    resumed = twins(params)
    with SwappedOptimizer(resumed, torch.optim.AdamW, sub_group_bytes=1, **how) as second:
        second.load(disk / "checkpoint")
        assert state_bits(second) == before
        for step in range(3, 6):
            give_gradients(resumed, step)
            give_gradients(model.params, step)
            second.step()
            model.step()
        assert parameter_bits(resumed) == parameter_bits(model.params)


def test_a_plain_checkpoint_starts_masters_from_the_parameters(disk: Path) -> None:
    params = half_parameters(torch.bfloat16)
    model = WithMasters(twins(params), torch.optim.AdamW, {})
    with SwappedOptimizer(params, torch.optim.AdamW, swap_dir=disk, master_weights=True) as swapped:
        give_gradients(model.params, 0)
        model.step()
        for param, theirs in zip(params, model.params, strict=True):
            param.data.copy_(theirs)
        swapped.load_state_dict(model.optimizer.state_dict())  # moments stay float32
        give_gradients(params, 1)
        swapped.step()
        copies = WithMasters(twins(model.params), torch.optim.AdamW, {})
        copies.optimizer.load_state_dict(model.optimizer.state_dict())
        give_gradients(copies.params, 1)
        copies.step()
        assert parameter_bits(params) == parameter_bits(copies.params)
