"""Optimizers that are swapped and plain ones side by side, for the tests of aio.swap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

# Every class of torch that updates each parameter by itself, with arguments that give it all the
# states that it can have.
OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.01}),
    (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    (torch.optim.AdamW, {"lr": 0.01, "foreach": True}),
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.5}),
    # Without eps, torch takes that of the first dtype in a group for all that follow it.
    (torch.optim.Adafactor, {"lr": 0.1, "eps": (1e-8, 1e-3)}),
    (torch.optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}),
    (torch.optim.NAdam, {"lr": 0.01}),
    (torch.optim.Adamax, {"lr": 0.01}),
    (torch.optim.ASGD, {"lr": 0.01}),
    (torch.optim.RAdam, {"lr": 0.01}),
    (torch.optim.Adadelta, {"lr": 0.5}),
    (torch.optim.Rprop, {"lr": 0.01}),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads for a thousand elements wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Of the elements in row-major order, so that NaNs compare equal by their bits."""
    octets: bytes = tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    return octets


def bits(tree: Any) -> Any:
    """A nested structure with the dtype, shape, stride and bytes of each tensor in it."""
    leaves, spec = tree_flatten(tree)
    return spec, [
        (leaf.dtype, leaf.shape, leaf.stride(), raw_bytes(leaf))
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in leaves
    ]


def state_bits(optimizer_or_dict: Any) -> dict[Any, Any]:
    """The bits of each parameter's state in a state_dict."""
    known = isinstance(optimizer_or_dict, Mapping)
    state_dict = optimizer_or_dict if known else optimizer_or_dict.state_dict()
    return {key: bits(dict(state)) for key, state in state_dict["state"].items()}


def parameter_bits(parameters: Iterable[torch.Tensor]) -> list[bytes]:
    return [raw_bytes(parameter) for parameter in parameters]


def twins(parameters: Iterable[torch.Tensor]) -> list[torch.nn.Parameter]:
    """Parameters of their own with the same values and strides."""
    return [
        torch.nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad) for p in parameters
    ]


def made_parameters(*shapes: tuple[int, ...], seed: int = 0) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def give_gradients(parameters: Iterable[torch.Tensor], step: int, missing: int = 0) -> None:
    """Gradients that depend on the step and the position only. ``missing``: a bit for each
    parameter that gets none.
    """
    for position, parameter in enumerate(parameters):
        if not parameter.requires_grad or missing >> position & 1:
            parameter.grad = None
            continue
        generator = torch.Generator().manual_seed(1000 * step + position)
        values = torch.randn(parameter.shape, generator=generator)
        # In the memory format of the parameter, as autograd makes them.
        parameter.grad = torch.empty_like(parameter).copy_(values)
