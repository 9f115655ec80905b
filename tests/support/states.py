"""Training states: what there is of them, seen without the library, and random ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64)
DTYPES = (*FLOATS, torch.uint8, torch.int64, torch.bool)
PLACES = ("cpu", "nvme")


def tensors_of(optimizer: Any, *modules: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor of a training by a name of its own."""
    found: dict[str, torch.Tensor] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    parameters += [p for module in modules for p in module.parameters()]
    for index, parameter in enumerate(parameters):
        found[f"parameter {index}"] = parameter
        if parameter.grad is not None:
            found[f"gradient {index}"] = parameter.grad
    for index, leaf in enumerate(tree_leaves(list(optimizer.state.values()))):
        if isinstance(leaf, torch.Tensor):
            found[f"state {index}"] = leaf
    return found


def octets_of(tensor: torch.Tensor) -> bytes:
    """All bytes of the storage, those between the elements too."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


@dataclass(frozen=True)
class Seen:
    """All that a program can see of a tensor, but not its address."""

    identity: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool
    pinned: bool
    octets: bytes
    shares_with: str  # the first tensor on its storage


def picture(tensors: dict[str, torch.Tensor]) -> dict[str, Seen]:
    """What is seen of tensors, now."""
    from pinned_manager import is_pinned

    first: dict[int, str] = {}
    return {
        name: Seen(
            id(tensor),
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.requires_grad,
            is_pinned(tensor),
            octets_of(tensor),
            first.setdefault(tensor.untyped_storage()._cdata, name),
        )
        for name, tensor in tensors.items()
    }


def flat(numel: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A tensor of any bits, NaNs included."""
    if dtype == torch.bool:
        return torch.arange(numel) % 3 == seed % 3
    generator = torch.Generator().manual_seed(seed)
    octets = torch.randint(0, 256, (numel * dtype.itemsize,), generator=generator)
    return octets.to(torch.uint8).view(dtype)


@st.composite
def views(draw: st.DrawFn, base: torch.Tensor) -> torch.Tensor:
    """Any view of a one-dimensional tensor: 0 to 3 dimensions, gaps, overlaps, no elements."""
    size = draw(st.lists(st.integers(0, 5), max_size=3))
    stride = [draw(st.integers(0, 7)) for _ in size]
    reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True) if n > 0)
    room = base.numel() - 1 - reach
    return base.as_strided(size, stride, draw(st.integers(0, room)))


BASE = 200  # elements: more than any view reaches


@st.composite
def trainings(draw: st.DrawFn) -> torch.optim.Optimizer:
    """Parameters of any dtype and layout, on shared storages or not, in groups, some frozen, some
    without gradient, some with gradients in flat buffers; states of any nesting.
    """
    seeds = iter(range(10**6))
    groups: list[list[torch.nn.Parameter]] = []
    flat_gradients: dict[torch.dtype, torch.Tensor] = {}
    state: dict[Any, Any] = {}
    for _ in range(draw(st.integers(1, 4))):  # storages
        dtype = draw(st.sampled_from(DTYPES))
        base = flat(BASE, dtype, next(seeds))
        for _ in range(draw(st.integers(1, 3))):  # parameters on it
            trained = dtype in FLOATS and draw(st.booleans())
            parameter = torch.nn.Parameter(draw(views(base)), requires_grad=trained)
            if not groups or draw(st.booleans()):
                groups.append([])
            groups[-1].append(parameter)
            how = draw(st.sampled_from(["none", "own", "flat", "strided"])) if trained else "none"
            if how == "own":
                own = flat(parameter.numel(), dtype, next(seeds))
                parameter.grad = own.view(parameter.shape)
            elif how == "strided":
                double = flat(2 * parameter.numel(), dtype, next(seeds))
                parameter.grad = double[::2].view(parameter.shape)
            elif how == "flat":
                buffer = flat_gradients.setdefault(dtype, flat(2000, dtype, next(seeds)))
                used = draw(st.integers(0, 2000 - parameter.numel()))
                part = buffer[used : used + parameter.numel()]
                parameter.grad = part.view(parameter.shape)
            if draw(st.booleans()):
                moment = flat(parameter.numel(), torch.float32, next(seeds))
                whole = flat(60, draw(st.sampled_from(DTYPES)), next(seeds))
                state[parameter] = {
                    "step": torch.tensor(3.0),
                    "moment": moment.view(parameter.shape),
                    "none": None,
                    "preconditioners": [whole[:10], {"inverse": (whole[5:].view(5, 11).T, 7)}],
                    "itself": parameter,
                }
    optimizer = torch.optim.SGD([{"params": group} for group in groups], lr=0.1)
    optimizer.state.update(state)
    return optimizer


def bytes_of(tensors: dict[str, torch.Tensor]) -> int:
    """Bytes of all storages, each once."""
    sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors.values()}
    return sum(sizes.values())


def small_model(width: int = 64, seed: int = 0) -> torch.nn.Module:
    """A model with a frozen layer and a tied weight."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width),
        torch.nn.LayerNorm(width),
        torch.nn.Linear(width, width, bias=False),
        torch.nn.Linear(width, width),
    )
    model[2].weight = model[0].weight
    model[1].requires_grad_(False)
    return model


def train(model: torch.nn.Module, optimizer: Any, steps: range) -> list[float]:
    """The losses of these steps; what a step is fed depends on its number only."""
    losses = []
    width = next(model.parameters()).shape[-1]
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        data = torch.randn(8, width, generator=generator)

        def closure(data: torch.Tensor = data) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(data).square().mean() * math.e
            loss.backward()
            return loss

        losses.append(float(optimizer.step(closure).detach()))
    return losses
