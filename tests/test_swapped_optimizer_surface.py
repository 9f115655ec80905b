"""Schedulers, GradScaler, hooks and param groups see a swapped optimizer as any of torch.optim."""

from __future__ import annotations

import copy
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from aio.swap import SwappedOptimizer, SwapStore
from support.swapped import give_gradients, made_parameters, parameter_bits, state_bits, twins

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = ((30,), (5, 6), (1,))
Pair = tuple[torch.optim.Optimizer, SwappedOptimizer, list[Any], list[Any]]


@pytest.fixture
def pair(disk: Path) -> Iterator[Callable[..., Pair]]:
    """``pair(cls, **kwargs)``: the plain one, the swapped one, and their parameters."""
    made = []

    def make(cls: Any = torch.optim.AdamW, **kwargs: Any) -> Pair:
        params = made_parameters(*SHAPES)
        copies = twins(params)
        swapped = SwappedOptimizer(copies, cls, swap_dir=disk, sub_group_bytes=1, **kwargs)
        made.append(swapped)
        return cls(params, **kwargs), swapped, params, copies

    yield make
    for swapped in made:
        swapped.close()


def test_it_is_an_optimizer(pair: Callable[..., Pair]) -> None:
    plain, swapped, _, _ = pair()
    assert isinstance(swapped, torch.optim.Optimizer)
    assert swapped.defaults == plain.defaults
    assert [set(group) for group in swapped.param_groups] == [
        set(group) for group in plain.param_groups
    ]
    assert "lr: 0.001" in repr(swapped)
    assert len(swapped.state) == 0


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=10),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=4),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
    ],
)
def test_schedulers(pair: Callable[..., Pair], scheduler: Callable[[Any], Any]) -> None:
    plain, swapped, params, copies = pair(lr=0.01)
    schedules = scheduler(plain), scheduler(swapped)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "step() was not called"
        for step in range(5):
            give_gradients(params, step)
            give_gradients(copies, step)
            plain.step()
            swapped.step()
            for schedule in schedules:
                schedule.step()
            assert plain.param_groups[0]["lr"] == swapped.param_groups[0]["lr"]
            assert parameter_bits(params) == parameter_bits(copies)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_grad_scaler_skips_steps_that_overflow(
    pair: Callable[..., Pair], fused: bool, unscale: bool
) -> None:
    plain, swapped, params, copies = pair(fused=fused)
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2) for _ in "ab"]
    for step in range(6):
        for optimizer, mine, scaler in zip(
            (plain, swapped), (params, copies), scalers, strict=True
        ):
            optimizer.zero_grad()
            factor = math.inf if step in (0, 3) else 1.0
            loss = sum((p * p).sum() for p in mine) * factor
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(mine, 0.5)
            scaler.step(optimizer)
            scaler.update()
        assert parameter_bits(params) == parameter_bits(copies)
        assert scalers[0].get_scale() == scalers[1].get_scale()
    assert state_bits(plain) == state_bits(swapped)


def test_hooks_and_closure(pair: Callable[..., Pair]) -> None:
    _, swapped, _, copies = pair()
    seen: list[str] = []
    swapped.register_step_pre_hook(lambda *_: seen.append("before"))
    swapped.register_step_post_hook(lambda *_: seen.append("after"))
    anywhere = register_optimizer_step_post_hook(
        lambda optimizer, *_: seen.append(type(optimizer).__name__)
    )

    def closure() -> float:
        assert torch.is_grad_enabled()
        give_gradients(copies, 0)
        seen.append("closure")
        return 3.5

    assert swapped.step(closure) == 3.5
    anywhere.remove()
    # Once for the step, not for each sub-group.
    assert seen == ["before", "closure", "after", "SwappedOptimizer"]
    swapped.register_state_dict_post_hook(lambda _, state_dict: {**state_dict, "extra": 1})
    swapped.register_load_state_dict_pre_hook(lambda *_: seen.append("loading"))
    swapped.register_load_state_dict_post_hook(lambda *_: seen.append("loaded"))
    state_dict = swapped.state_dict()
    assert state_dict["extra"] == 1
    swapped.load_state_dict(state_dict)
    assert seen[-2:] == ["loading", "loaded"]


def test_a_hook_that_replaces_what_is_loaded(pair: Callable[..., Pair]) -> None:
    """The caller's dict stays as it is."""
    plain, swapped, params, copies = pair()
    for optimizer, mine in ((plain, params), (swapped, copies)):
        give_gradients(mine, 0)
        optimizer.step()
    given = plain.state_dict()
    before = state_bits(given)

    def halved(optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        states = {
            key: {**state, "exp_avg": state["exp_avg"] / 2}
            for key, state in state_dict["state"].items()
        }
        return {**state_dict, "state": states}

    for optimizer in (plain, swapped):
        optimizer.register_load_state_dict_pre_hook(halved)
        optimizer.load_state_dict(given)
    assert state_bits(swapped) == state_bits(plain)
    assert state_bits(given) == before != state_bits(plain)


def test_add_param_group(pair: Callable[..., Pair]) -> None:
    plain, swapped, params, copies = pair()
    for step in range(4):
        if step == 2:
            more = made_parameters((9,), (4, 4), seed=5)
            more_copies = twins(more)
            plain.add_param_group({"params": iter(more), "lr": 0.5})
            swapped.add_param_group({"params": iter(more_copies), "lr": 0.5})
            params, copies = [*params, *more], [*copies, *more_copies]
        give_gradients(params, step)
        give_gradients(copies, step)
        plain.step()
        swapped.step()
        assert parameter_bits(params) == parameter_bits(copies)
    assert state_bits(plain) == state_bits(swapped)
    with pytest.raises(ValueError, match="more than one parameter group"):
        swapped.add_param_group({"params": [copies[0]]})
    with pytest.raises(ValueError, match="twice"):
        swapped.add_param_group({"params": made_parameters((2,)) * 2})
    assert len(swapped.param_groups) == 2


def test_groups_that_no_optimizer_takes(pair: Callable[..., Pair]) -> None:
    """Each raises what the plain one raises, and changes nothing."""
    plain, swapped, _, _ = pair()
    (parameter,) = made_parameters((3,), seed=8)
    groups: list[Any] = [
        *(5, parameter, None, {"lr": 1.0}, {"params": {parameter}}, {"params": [5]}),
        {"params": ["weight", parameter]},
    ]
    for group in groups:
        refused = []
        for optimizer in (plain, swapped):
            with pytest.raises((TypeError, KeyError)) as caught:
                optimizer.add_param_group(copy.copy(group))
            refused.append(caught.type)
        assert refused[0] is refused[1], group
        assert len(swapped.param_groups) == 1
        assert len(swapped._sub_groups) == len(SHAPES)


def test_a_group_of_one_parameter(pair: Callable[..., Pair]) -> None:
    """It may be given without a list."""
    plain, swapped, params, copies = pair()
    more = made_parameters((9,), seed=5)
    more_copies = twins(more)
    plain.add_param_group({"params": more[0]})
    swapped.add_param_group({"params": more_copies[0]})
    for step in range(2):
        give_gradients([*params, *more], step)
        give_gradients([*copies, *more_copies], step)
        plain.step()
        swapped.step()
    assert parameter_bits([*params, *more]) == parameter_bits([*copies, *more_copies])
    assert state_bits(plain) == state_bits(swapped)


def test_groups_of_iterators(disk: Path) -> None:
    params = made_parameters(*SHAPES)
    copies = twins(params)
    plain = torch.optim.AdamW([{"params": iter(params), "lr": 0.5}])
    with SwappedOptimizer(
        [{"params": iter(copies), "lr": 0.5}], torch.optim.AdamW, swap_dir=disk
    ) as swapped:
        assert [len(group["params"]) for group in swapped.param_groups] == [len(SHAPES)]
        give_gradients(params, 0)
        give_gradients(copies, 0)
        plain.step()
        swapped.step()
        assert parameter_bits(params) == parameter_bits(copies)
        assert state_bits(plain) == state_bits(swapped)


class Unhooked(torch.optim.Optimizer):
    """Does itself what the constructor of Optimizer does, and so has none of its hooks."""

    def __init__(self, params: Any) -> None:
        self.defaults: dict[str, Any] = {}
        self.state: Any = defaultdict(dict)
        self.param_groups = list(params)

    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.data.sub_(p.grad)
            self.state[p]["last"] = p.grad.clone()


def test_an_optimizer_without_hooks(disk: Path) -> None:
    params = made_parameters(*SHAPES)
    expected = twins(params)
    with SwappedOptimizer(params, Unhooked, swap_dir=disk, sub_group_bytes=1) as swapped:
        for step in range(2):
            give_gradients(params, step)
            give_gradients(expected, step)
            swapped.step()
            for p in expected:
                p.data.sub_(p.grad)
        assert parameter_bits(params) == parameter_bits(expected)
        for p, q in zip(params, expected, strict=True):
            assert torch.equal(swapped.state[p]["last"], q.grad)


def test_states_can_be_looked_at(pair: Callable[..., Pair]) -> None:
    plain, swapped, params, copies = pair()
    give_gradients(params, 0, missing=2)
    give_gradients(copies, 0, missing=2)
    plain.step()
    swapped.step()
    assert copies[0] in swapped.state
    assert copies[1] not in swapped.state
    assert list(swapped.state) == [copies[0], copies[2]]
    assert swapped.state[copies[1]] == {}
    mine = swapped.state[copies[2]]["exp_avg"]
    assert torch.equal(mine, plain.state[params[2]]["exp_avg"])
    mine.zero_()  # a copy
    assert torch.equal(swapped.state[copies[2]]["exp_avg"], plain.state[params[2]]["exp_avg"])
    with pytest.raises(KeyError):
        swapped.state[torch.ones(1)]


def test_bad_arguments(disk: Path) -> None:
    params = made_parameters((3,))
    for error, match, cls, kwargs in [
        (ValueError, "closure", torch.optim.LBFGS, {}),
        (TypeError, "subclass", torch.nn.Linear, {}),
        (TypeError, "subclass", "adam", {}),
        (ValueError, "sub_group_bytes", torch.optim.Adam, {"sub_group_bytes": 0}),
        (ValueError, "cache_bytes", torch.optim.Adam, {"cache_bytes": -1}),
        (ValueError, "differentiable", torch.optim.Adam, {"differentiable": True}),
        (ValueError, "learning rate", torch.optim.Adam, {"lr": -1.0}),
        (TypeError, "momentum", torch.optim.Adam, {"momentum": 0.9}),
    ]:
        with pytest.raises(error, match=match):
            SwappedOptimizer(params, cls, swap_dir=disk, **kwargs)
    with pytest.raises(ValueError, match="empty"):
        SwappedOptimizer([], torch.optim.Adam, swap_dir=disk)
    with pytest.raises(TypeError, match="iterable of Tensors"):
        SwappedOptimizer(params[0], torch.optim.Adam, swap_dir=disk)
    with pytest.raises(ValueError, match="twice"):
        SwappedOptimizer(params * 2, torch.optim.Adam, swap_dir=disk)
    for wrong in ([*params, 5], [(params[0], "weight")]):
        with pytest.raises(TypeError, match=r"params has a (int|str), but must be of tensors"):
            SwappedOptimizer(wrong, torch.optim.Adam, swap_dir=disk)
    with pytest.raises(TypeError, match="ordered collections"):
        SwappedOptimizer([{"params": set(params)}], torch.optim.Adam, swap_dir=disk)
    assert list(disk.iterdir()) == []


def test_a_parameter_that_was_replaced_is_noticed(pair: Callable[..., Pair]) -> None:
    _, swapped, _, copies = pair()
    swapped.param_groups[0]["params"][0] = made_parameters((30,))[0]
    give_gradients(copies, 0)
    with pytest.raises(RuntimeError, match="add_param_group"):
        swapped.step()


def test_it_cannot_be_copied(pair: Callable[..., Pair]) -> None:
    with pytest.raises(TypeError, match="save"):
        copy.deepcopy(pair()[1])


def test_two_optimizers_in_one_store(disk: Path) -> None:
    with SwapStore(disk) as store:
        params, others = made_parameters((40,)), made_parameters((40,), seed=3)
        first = SwappedOptimizer(params, torch.optim.Adam, swap_dir=store)
        second = SwappedOptimizer(others, torch.optim.Adam, swap_dir=store, sub_group_bytes=1)
        for step in range(2):
            give_gradients(params, step)
            give_gradients(others, step)
            first.step()
            second.step()
        first.close()
        assert not store.closed
        with pytest.raises(RuntimeError, match="closed"):
            first.step()
        second.step()
        second.close()
        assert store.names() == []
