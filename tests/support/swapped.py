"""Optimizers that are swapped and plain ones side by side, for the tests of aio.swap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_flatten


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
