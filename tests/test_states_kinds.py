"""What belongs to each kind of state, and what stays where it is."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch

from pinned_manager import is_pinned
from pinned_manager.states import OffloadStateTypeEnum, offload_states, reload_states
from support.states import picture, tensors_of

KINDS = [kind.value for kind in OffloadStateTypeEnum]


def moved_by(target: Any, include: str, tensors: dict[str, torch.Tensor]) -> set[str]:
    """The names of the tensors that are moved; they come back."""
    before = picture(tensors)
    offload_states(target, [include])
    moved = {name for name, tensor in tensors.items() if is_pinned(tensor)}
    reload_states(target)
    assert picture(tensors) == before
    return moved


def with_gradient(parameter: torch.Tensor) -> torch.nn.Parameter:
    made = torch.nn.Parameter(parameter)
    made.grad = torch.ones_like(made)
    return made


def test_one_kind_each() -> None:
    masters = {
        f"master {dtype}": with_gradient(torch.ones(3, dtype=dtype))
        for dtype in (torch.float32, torch.float64, torch.complex64)
    }
    working: dict[str, torch.nn.Parameter] = {
        f"working {dtype}": with_gradient(torch.ones(3, dtype=dtype))
        for dtype in (torch.float16, torch.bfloat16)
    }
    working["integer"] = torch.nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
    bucketed = {
        "first": torch.nn.Parameter(torch.ones(2, 3)),
        "second": torch.nn.Parameter(torch.ones(4)),
    }
    buffer = torch.zeros(20)
    bucketed["first"].grad, bucketed["second"].grad = buffer[:6].view(2, 3), buffer[9:13]
    optimizer = torch.optim.SGD([*masters.values(), *working.values(), *bucketed.values()])
    moment, history, counter = torch.ones(3), torch.ones(2, dtype=torch.float64), torch.tensor(3.0)
    itself: list[Any] = [None]
    itself[0] = itself
    optimizer.state[masters["master torch.float32"]] = {
        "itself": itself,
        "moment": moment,
        "history": [deque([history]), {"more": (None, 4)}],
        "step": counter,
        "parameter": bucketed["first"],  # is one all the same
    }
    tensors = {**masters, **working, **bucketed}
    gradients = {f"gradient of {n}": p.grad for n, p in tensors.items() if p.grad is not None}
    states = {"moment": moment, "history": history, "step": counter}
    everything = {**tensors, **gradients, **states, "buffer": buffer}
    assert moved_by(optimizer, "hp_params", everything) == {*masters, *bucketed}
    assert moved_by(optimizer, "lp_params", everything) == {*working}
    own = {f"gradient of {name}" for name in (*masters, *working)} & set(gradients)
    assert moved_by(optimizer, "lp_grads", everything) == own
    # The buffer itself moves too: gradients that are views keep their base.
    assert moved_by(optimizer, "contiguous_grad_buffer", everything) == {
        *(f"gradient of {name}" for name in bucketed),
        "buffer",
    }
    assert moved_by(optimizer, "optim_states", everything) == {"moment", "history"}


def test_modules_and_flat_tensors_of_a_target() -> None:
    """Low-precision parameters of a module beside their masters, and a buffer with one view."""
    module = torch.nn.Linear(4, 4).to(torch.bfloat16)
    module.weight.grad = torch.ones_like(module.weight)
    module.bias.requires_grad_(False)
    masters = [torch.nn.Parameter(p.detach().float()) for p in module.parameters()]
    buffer = torch.zeros(64)
    masters[0].grad = buffer.detach()[:16].view(4, 4)  # not known to be a view of buffer
    optimizer = torch.optim.SGD(masters)
    named = {"weight": module.weight, "bias": module.bias, "weight gradient": module.weight.grad}
    named |= {"master": masters[0], "master gradient": masters[0].grad, "buffer": buffer}
    target = (optimizer, module, buffer)
    assert moved_by(optimizer, "lp_params", named) == set()
    assert moved_by(target, "lp_params", named) == {"weight", "bias"}
    assert moved_by(target, "lp_grads", named) == {"weight gradient"}
    assert moved_by(target, "hp_params", named) == {"master"}
    assert moved_by(target, "contiguous_grad_buffer", named) == {"master gradient", "buffer"}
    offload_states(target)
    reload_states(optimizer)  # what was given along comes back as well
    assert not any(is_pinned(tensor) for tensor in named.values())


def test_a_storage_moves_with_its_first_kind() -> None:
    """A flat buffer of parameters, moments and gradients cannot be torn apart."""
    flat = torch.arange(30.0)
    parameter = torch.nn.Parameter(flat[:10])
    parameter.grad = flat.detach()[10:20]
    optimizer = torch.optim.SGD([parameter])
    optimizer.state[parameter]["moment"] = flat.detach()[20:]
    tensors = tensors_of(optimizer)
    for kind in KINDS:
        moved = moved_by(optimizer, kind, tensors)
        assert moved == (set(tensors) if kind == "hp_params" else set())


def test_wrapped_tensors_move_inside() -> None:
    """A subclass that wraps others (DTensor does) moves what it wraps."""
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")
    wrapped = two_tensor.TwoTensor(torch.randn(6), torch.randn(6))
    parameter = torch.nn.Parameter(wrapped)
    optimizer = torch.optim.SGD([parameter])
    inner = {"a": parameter.a, "b": parameter.b}
    assert moved_by(optimizer, "hp_params", inner) == {"a", "b"}


def test_what_has_no_plain_memory_stays() -> None:
    plain = with_gradient(torch.ones(3))
    embedding = torch.nn.Embedding(10, 3, sparse=True)
    embedding(torch.tensor([1, 5])).sum().backward()
    meta = torch.nn.Parameter(torch.empty(3, device="meta"))
    optimizer = torch.optim.SGD([plain, embedding.weight, meta])
    shared = torch.ones(5).share_memory_()  # other processes would not follow
    optimizer.state[plain] = {"shared": shared, "sparse": torch.eye(3).to_sparse()}
    address, gradient = shared.data_ptr(), embedding.weight.grad
    offload_states(optimizer)
    assert is_pinned(plain)
    assert is_pinned(embedding.weight)
    assert shared.data_ptr() == address
    assert embedding.weight.grad is gradient
    assert embedding.weight.grad.is_sparse
    assert meta.is_meta
    reload_states(optimizer)
    assert not is_pinned(plain)


def test_a_subclass_without_memory_of_its_own_kind(disk: Path) -> None:
    """Operations that a subclass overrides are none of a move's business."""

    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            raise AssertionError(f"{function} was called")

    state = torch.randn(7).as_subclass(Refusing)
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter])
    optimizer.state[parameter]["state"] = state
    with torch._C.DisableTorchFunction():
        values = state.clone()
    for place in ("cpu", "nvme"):
        offload_states(optimizer, device=place, nvme_path=disk)
        reload_states(optimizer)
    with torch._C.DisableTorchFunction():
        assert torch.equal(state, values)
    assert type(optimizer.state[parameter]["state"]) is Refusing
