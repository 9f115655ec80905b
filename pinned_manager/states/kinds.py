"""Which states there are to move, under DeepSpeed's names."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import torch


class OffloadStateTypeEnum(str, Enum):
    """The kinds of states. A member equals its name: ``"optim_states"`` may be given instead."""

    optim_states = "optim_states"
    """Tensors in ``optimizer.state``; those of no dimension, such as step counters, stay."""
    hp_params = "hp_params"
    """Parameters of 32 bits and more for a real number."""
    lp_params = "lp_params"
    """All other parameters: float16, bfloat16, float8, integers."""
    lp_grads = "lp_grads"
    """Gradients in ``.grad``, of any precision, that have a storage of their own."""
    contiguous_grad_buffer = "contiguous_grad_buffer"
    """Storages that several gradients are views of, and flat tensors given with the target."""


_HIGH_PRECISION = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def kind_of_parameter(dtype: torch.dtype) -> OffloadStateTypeEnum:
    """hp_params or lp_params."""
    if dtype in _HIGH_PRECISION:
        return OffloadStateTypeEnum.hp_params
    return OffloadStateTypeEnum.lp_params


def included_kinds(
    include: str | Iterable[str] | None,
) -> frozenset[OffloadStateTypeEnum]:
    """What the caller named; everything for None.

    Raises ValueError for an unknown name.
    """
    if include is None:
        return frozenset(OffloadStateTypeEnum)
    return frozenset(_kind(name) for name in ([include] if isinstance(include, str) else include))


def _kind(name: str) -> OffloadStateTypeEnum:
    try:
        return OffloadStateTypeEnum(name)
    except ValueError:
        known = ", ".join(kind.value for kind in OffloadStateTypeEnum)
        raise ValueError(f"include has {name!r}, but must have only: {known}") from None
