"""A swapped optimizer computes what the plain one does in memory, bit for bit, at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aio.swap import SwappedOptimizer, SwapStore
from support.swapped import give_gradients, made_parameters, parameter_bits, state_bits, twins
from support.torch_optimizers import OPTIMIZERS

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 4


@pytest.fixture
def store(disk: Path, make_handle: Callable[..., Any]) -> Iterator[SwapStore]:
    with SwapStore(disk, make_handle()) as made:
        yield made


@st.composite
def parameters(draw: st.DrawFn, dtypes: list[torch.dtype]) -> list[torch.nn.Parameter]:
    made = []
    for seed in range(draw(st.integers(1, 6))):
        shape = draw(
            st.one_of(
                st.just(()),
                st.tuples(st.integers(1, 3000)),
                st.tuples(st.integers(1, 40), st.integers(1, 40)),
                st.tuples(*[st.integers(1, 4)] * 4),
            )
        )
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        values = values.to(draw(st.sampled_from(dtypes)))
        if len(shape) == 4 and draw(st.booleans()):
            values = values.contiguous(memory_format=torch.channels_last)
        made.append(torch.nn.Parameter(values, requires_grad=draw(st.integers(0, 5)) > 0))
    return made


def grouped(params: list[torch.nn.Parameter], cuts: list[int]) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = []
    for cut in cuts:
        part, params = params[:cut], params[cut:]
        groups.append({"params": part, "lr": 0.01 * (1 + len(groups))})
    return [*groups, {"params": params}]


@given(data=st.data())
@pytest.mark.parametrize(("cls", "kwargs"), OPTIMIZERS)
def test_every_step_is_that_of_the_plain_optimizer(
    store: SwapStore, cls: type[torch.optim.Optimizer], kwargs: dict[str, Any], data: st.DataObject
) -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16]
    plain_params = data.draw(parameters(dtypes[:1] if kwargs.get("fused") else dtypes))
    swapped_params = twins(plain_params)
    cuts = data.draw(st.lists(st.integers(0, 3), max_size=2))
    plain = cls(grouped(plain_params, cuts), **kwargs)
    with SwappedOptimizer(
        grouped(swapped_params, cuts),
        cls,
        swap_dir=store,
        sub_group_bytes=data.draw(st.sampled_from([1, 4096, 20_000, 1 << 20])),
        cache_bytes=data.draw(st.sampled_from([0, 4096, 30_000, 1 << 20])),
        **kwargs,
    ) as swapped:
        for step in range(STEPS):
            missing = data.draw(st.integers(0, (1 << len(plain_params)) - 1))
            if cls is torch.optim.SGD and kwargs.get("fused"):
                missing = 0  # torch's own refuses a first gradient after the first step
            give_gradients(plain_params, step, missing)
            give_gradients(swapped_params, step, missing)
            plain.step()
            swapped.step()
            assert parameter_bits(swapped_params) == parameter_bits(plain_params)
        assert state_bits(swapped) == state_bits(plain)


def assert_steps_are_alike(
    plain_params: list[torch.nn.Parameter],
    plain: torch.optim.Optimizer,
    swapped_params: list[torch.nn.Parameter],
    swapped: SwappedOptimizer,
) -> None:
    for step in range(STEPS):
        give_gradients(plain_params, step)
        give_gradients(swapped_params, step)
        plain.step()
        swapped.step()
        assert parameter_bits(swapped_params) == parameter_bits(plain_params)
    assert state_bits(swapped) == state_bits(plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.complex64, torch.complex128])
def test_other_dtypes(store: SwapStore, dtype: torch.dtype) -> None:
    plain_params = [torch.nn.Parameter(torch.ones(300, dtype=dtype)) for _ in range(3)]
    swapped_params = twins(plain_params)
    plain = torch.optim.Adam(plain_params, eps=1e-3)
    with SwappedOptimizer(
        swapped_params, torch.optim.Adam, swap_dir=store, sub_group_bytes=1, eps=1e-3
    ) as swapped:
        assert_steps_are_alike(plain_params, plain, swapped_params, swapped)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_an_optimizer_of_matrices(store: SwapStore) -> None:
    plain_params = made_parameters((30, 20), (7, 9), (64, 64))
    swapped_params = twins(plain_params)
    plain = torch.optim.Muon(plain_params, lr=0.01)
    with SwappedOptimizer(
        swapped_params, torch.optim.Muon, swap_dir=store, sub_group_bytes=4096, lr=0.01
    ) as swapped:
        assert_steps_are_alike(plain_params, plain, swapped_params, swapped)


def test_sparse_gradients(store: SwapStore) -> None:
    plain_model, swapped_model = (torch.nn.Embedding(50, 4, sparse=True) for _ in range(2))
    swapped_model.load_state_dict(plain_model.state_dict())
    plain = torch.optim.SparseAdam(list(plain_model.parameters()))
    with SwappedOptimizer(
        list(swapped_model.parameters()), torch.optim.SparseAdam, swap_dir=store
    ) as swapped:
        for step in range(STEPS):
            for model, optimizer in ((plain_model, plain), (swapped_model, swapped)):
                optimizer.zero_grad()
                model(torch.tensor([step, 3, 7])).square().sum().backward()
                optimizer.step()
            assert torch.equal(swapped_model.weight, plain_model.weight)
        assert state_bits(swapped) == state_bits(plain)
        assert swapped.stats()["state_bytes"] >= 2 * 50 * 4 * 4


def test_a_parameter_without_elements(store: SwapStore) -> None:
    params = [torch.nn.Parameter(torch.zeros(0, 3)), *made_parameters((5,))]
    with SwappedOptimizer(params, torch.optim.AdamW, swap_dir=store) as swapped:
        give_gradients(params, 0)
        swapped.step()
        swapped.step()
        assert swapped.state[params[0]]["exp_avg"].shape == (0, 3)


class Restless(torch.optim.Optimizer):
    """Makes new tensors, lets two change places, keeps lists, and counts in its param group."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        for group in self.param_groups:
            group["count"] = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(a=torch.zeros_like(p), b=torch.ones_like(p), more=[], same=p)
                    state.update(c=torch.zeros_like(p), d=torch.ones_like(p))
                state["c"], state["d"] = state["d"], state["c"]
                state["c"].mul_(0.5).add_(p.grad)
                state["a"], state["b"] = state["b"], state["a"]
                state["b"] = state["b"] * 0.5 + p.grad
                if group["count"] == 2:
                    state["more"] = [state["b"].clone(), {"n": group["count"]}]
                p.sub_(state["a"] + state["b"] * group["count"], alpha=group["lr"])
                p.mul_(1 + 0.01 * state["d"])


def test_states_that_change_tensors_and_layout(store: SwapStore) -> None:
    plain_params = made_parameters((700,), (3, 5), (1,), (40, 40))
    swapped_params = twins(plain_params)
    plain = Restless(plain_params)
    with SwappedOptimizer(
        swapped_params, Restless, swap_dir=store, sub_group_bytes=6000
    ) as swapped:
        for step in range(5):
            give_gradients(plain_params, step)
            give_gradients(swapped_params, step)
            plain.step()
            swapped.step()
            assert parameter_bits(swapped_params) == parameter_bits(plain_params)
            assert swapped.param_groups[0]["count"] == step + 1
        assert state_bits(swapped) == state_bits(plain)
