"""``SwappedOptimizer.state``: states that are read from the drive when they are asked for."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from aio.swap.masters import MASTER_KEY
from aio.swap.pipeline import Pipeline
from aio.swap.sharding import copy_of
from aio.swap.sub_groups import Member, SubGroup


class SwappedStates(Mapping[torch.Tensor, Any]):
    """The states by parameter, as ``torch.optim.Optimizer.state`` has them. What is got is a copy.

    Asking for one parameter reads its sub-group; ``items()`` reads each sub-group once.
    """

    def __init__(
        self,
        sub_groups: Sequence[SubGroup],
        pipeline: Pipeline,
        param_groups: Sequence[Mapping[str, Any]],
    ) -> None:
        self._sub_groups = sub_groups
        self._pipeline = pipeline
        self._param_groups = param_groups

    def stream(self, sub_group: SubGroup, copy: bool = True) -> Iterator[tuple[Member, Any]]:
        """The members of a sub-group that have a state, and that, with the master if there is one.

        ``copy=False`` gives tensors that are valid until the iterator is asked for the next.
        """
        with self._pipeline.extent_of(sub_group) as extent:
            states = sub_group.states(extent, self._param_groups)
            for member, kept in zip(sub_group.members, states, strict=True):
                state = kept.state
                if kept.master is not None:
                    state = {**(state or {}), MASTER_KEY: kept.master}
                if state is not None:
                    yield member, tree_map_only(torch.Tensor, copy_of, state) if copy else state

    def __getitem__(self, parameter: torch.Tensor) -> Any:
        for sub_group in self._sub_groups:
            if any(member.parameter is parameter for member in sub_group.members):
                return next((s for m, s in self.stream(sub_group) if m.parameter is parameter), {})
        raise KeyError("the tensor is not a parameter of this optimizer")

    def __iter__(self) -> Iterator[torch.Tensor]:
        for sub_group in self._sub_groups:
            if sub_group.layout is None:
                yield from [member.parameter for member, _ in self.stream(sub_group, copy=False)]
                continue
            for member, tree in zip(sub_group.members, sub_group.trees, strict=True):
                state, master = tree.marked()
                if state is not None or master is not None:
                    yield member.parameter

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, parameter: object) -> bool:
        return any(mine is parameter for mine in self)

    def items(self) -> ItemsView[torch.Tensor, Any]:
        return _Items(self)


class _Items(ItemsView[torch.Tensor, Any]):
    _mapping: SwappedStates

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Any]]:
        for sub_group in self._mapping._sub_groups:
            for member, state in self._mapping.stream(sub_group):
                yield member.parameter, state
