"""The user's optimizer class, made for a few parameters at a time."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path

from aio.swap.state_layout import is_movable

_logger = logging.getLogger("aio.swap")

_PROBE_SIDE = 8  # elements in each dimension of a probe: what is 1 in a state was reduced
_PROBE_NUMEL = 1 << 15


@dataclass(frozen=True)
class StateSample:
    """What an optimizer keeps for a parameter of some dtype and number of dimensions."""

    bytes_per_element: float
    # For each tensor of as many dimensions as the parameter: which of them it has in full.
    shapes: Mapping[str, tuple[bool, ...]]


class InnerOptimizers:
    """Makes optimizers of one class with the arguments that the user gave."""

    def __init__(self, cls: type[torch.optim.Optimizer], arguments: Mapping[str, Any]) -> None:
        """ValueError or TypeError for classes that cannot work on a few parameters at a time."""
        if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
            raise TypeError(
                f"optimizer_cls is {cls!r}, but must be a subclass of torch.optim.Optimizer"
            )
        closure = inspect.signature(cls.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ValueError(
                f"{cls.__name__} calls its closure again and again in one step, for all parameters "
                "at once, so its states cannot be swapped in parts; choose another optimizer"
            )
        if arguments.get("differentiable"):
            raise ValueError(
                "differentiable=True keeps states in the graph of autograd; they cannot be swapped"
            )
        self.cls = cls
        self._arguments = dict(arguments)
        self._samples: dict[tuple[Any, ...], StateSample | None] = {}

    def template(
        self, groups: Sequence[dict[str, Any]], master_dtypes: frozenset[torch.dtype]
    ) -> torch.optim.Optimizer:
        """One for parameters of the same kinds without elements: it checks the arguments, and has
        the defaults.
        """
        return self.make(
            [{**group, "params": _stand_ins(group, master_dtypes)} for group in groups]
        )

    def make(self, groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
        made = self.cls([dict(group) for group in groups], **self._arguments)
        return made

    def make_as_given(self, groups: Any) -> torch.optim.Optimizer:
        """With whatever is given for groups, which the class may refuse."""
        made = self.cls(groups, **self._arguments)
        return made

    def sample(
        self, options: Mapping[str, Any], group: int, parameter: torch.Tensor, dtype: torch.dtype
    ) -> StateSample | None:
        """What it keeps for such a parameter, found out with a small one. None where that fails."""
        key = (group, dtype, parameter.dim(), parameter.device)
        if key not in self._samples:
            try:
                self._samples[key] = self._probe(options, parameter, dtype)
            except Exception as error:
                _logger.info("states of %s are not known before: %s", self.cls.__name__, error)
                self._samples[key] = None
        return self._samples[key]

    def _probe(
        self, options: Mapping[str, Any], parameter: torch.Tensor, dtype: torch.dtype
    ) -> StateSample:
        dims = parameter.dim()
        side = _PROBE_SIDE if _PROBE_SIDE**dims <= _PROBE_NUMEL else 2
        small = torch.nn.Parameter(
            torch.full((side,) * dims, 0.5, dtype=dtype, device=parameter.device)
        )
        small.grad = torch.full_like(small, 0.25)
        # An optimizer may draw random numbers, but the user's own sequence must not change.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            optimizer = self.make([{**options, "params": [small]}])
            step_of(optimizer)
        leaves = tree_flatten_with_path(optimizer.state.get(small, {}))[0]
        tensors = [(keystr(path), leaf) for path, leaf in leaves if is_movable(leaf)]
        shapes = {
            path: tuple(size == side for size in leaf.shape)
            for path, leaf in tensors
            if leaf.dim() == dims and all(size in (1, side) for size in leaf.shape)
        }
        nbytes = sum(leaf.numel() * leaf.element_size() for _, leaf in tensors)
        return StateSample(nbytes / small.numel(), shapes)


def step_of(optimizer: torch.optim.Optimizer) -> None:
    """One step without the hooks that torch has put around it: those are the outer optimizer's."""
    step = type(optimizer).step
    if getattr(step, "hooked", False):
        step = step.__wrapped__  # type: ignore[attr-defined]
    step(optimizer)


def _stand_ins(
    group: Mapping[str, Any], master_dtypes: frozenset[torch.dtype]
) -> list[torch.nn.Parameter]:
    params = group["params"]
    given = [params] if isinstance(params, torch.Tensor) else list(params)
    stand_ins = []
    for entry in given:
        parameter = entry[1] if isinstance(entry, tuple) else entry
        if not isinstance(parameter, torch.Tensor):
            raise TypeError(f"params has a {type(parameter).__name__}, but must be of tensors")
        dtype = torch.float32 if parameter.dtype in master_dtypes else parameter.dtype
        empty = torch.zeros((0,) * parameter.dim(), dtype=dtype, device=parameter.device)
        stand_ins.append(
            torch.nn.Parameter(empty, requires_grad=dtype.is_floating_point or dtype.is_complex)
        )
    return stand_ins
