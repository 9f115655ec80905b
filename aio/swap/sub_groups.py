"""Sub-groups: some parameters, the optimizer that updates just them, and where their states are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aio.swap.frames import Frames
from aio.swap.inner import InnerOptimizers, step_of
from aio.swap.masters import Master
from aio.swap.sharding import local_part
from aio.swap.state_layout import (
    EXTENT_ALIGNMENT,
    StateLayout,
    StateTree,
    is_plain,
    round_up,
    storage_of,
    take_apart,
)

NOT_OPTIONS = ("params", "param_names")  # in a param group


@dataclass(eq=False)
class Member:
    """A parameter of a sub-group."""

    parameter: torch.Tensor
    group: int  # of the outer optimizer's param_groups
    index: int  # of all parameters, as state_dict() counts
    name: str | None
    master: Master | None
    estimate: int  # bytes of its states, as far as is known before the first step

    @property
    def updated(self) -> torch.Tensor:
        """What the inner optimizer sees."""
        return self.parameter if self.master is None else self.master.stand_in

    @property
    def label(self) -> str:
        """For messages."""
        return f"parameter {self.index}" if self.name is None else repr(self.name)


@dataclass
class MemberState:
    """What is kept for a parameter; None where there is nothing."""

    state: Any
    master: torch.Tensor | None


class SubGroup:
    """Its states are in an extent while it is updated, and on the drive or in the cache else."""

    def __init__(self, number: int, members: Sequence[Member], inners: InnerOptimizers) -> None:
        self.number = number
        self.members = list(members)
        self.stored: str | None = None  # name in the store
        self.trees: list[StateTree] = []
        self.layout: StateLayout | None = None  # unknown before there are states
        self.inner: torch.optim.Optimizer | None = None
        self.extent: torch.Tensor | None = None  # during an update
        self._inners = inners

    @property
    def nbytes(self) -> int:
        """Of the extent; an estimate before the first step."""
        if self.layout is None:
            return round_up(sum(member.estimate for member in self.members), EXTENT_ALIGNMENT)
        return self.layout.nbytes

    def has_gradient(self) -> bool:
        """Without any, an update would change nothing."""
        return any(member.parameter.grad is not None for member in self.members)

    def options(self, param_groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The param groups of the inner optimizer, with the outer one's hyper-parameters of now."""
        made: dict[int, dict[str, Any]] = {}
        for member in self.members:
            if member.group not in made:
                outer = param_groups[member.group]
                made[member.group] = {k: v for k, v in outer.items() if k not in NOT_OPTIONS}
                made[member.group]["params"] = []
            made[member.group]["params"].append(member.updated)
        return list(made.values())

    def update(
        self,
        extent: torch.Tensor | None,
        param_groups: Sequence[Mapping[str, Any]],
        attributes: Mapping[str, Any],
        frames: Frames,
    ) -> dict[int, dict[str, Any]]:
        """One step of the optimizer on these parameters. Returns what it has changed in its param
        groups, by their numbers.

        ``extent`` holds their states, None where there are none yet; ``self.extent`` holds those
        after the step, however it ends. ``attributes`` are what GradScaler sets on an optimizer.
        """
        self._attach(extent)
        try:
            inner = self._ready(param_groups)
            given = self.options(param_groups)
            inner.param_groups = [dict(group) for group in given]
            vars(inner).update(attributes)
            try:
                step_of(inner)
            finally:
                for name in attributes:
                    delattr(inner, name)
            for member in self.members:
                if member.master is not None:
                    member.master.publish()
        finally:
            self.extent = self.settle(self._detach(), extent, frames)
        groups = dict.fromkeys(member.group for member in self.members)
        changes = {
            group: {k: v for k, v in after.items() if k != "params" and v is not before.get(k)}
            for group, after, before in zip(groups, inner.param_groups, given, strict=True)
        }
        return {group: changed for group, changed in changes.items() if changed}

    def states(
        self, extent: torch.Tensor | None, param_groups: Sequence[Mapping[str, Any]]
    ) -> list[MemberState]:
        """What is kept for each member, in the memory of the extent. Before there is anything, what
        the optimizer's constructor makes.
        """
        if self.layout is not None:
            views = [] if extent is None else self.layout.views(extent)
            return [MemberState(*tree.state(views)) for tree in self.trees]
        self._attach(None)
        try:
            self._ready(param_groups)
        finally:
            found = self._detach()
        self.inner = None
        return [MemberState(kept.state, None) for kept in found]

    def settle(
        self, states: Iterable[MemberState], extent: torch.Tensor | None, frames: Frames
    ) -> torch.Tensor | None:
        """Bring states to an extent, and learn their layout. ``extent`` is where they were, and is
        used again if it fits. Returns None where nothing is swapped.
        """
        foreign = set()
        for member in self.members:
            for tensor in (member.parameter, member.parameter.grad):
                if tensor is not None and is_plain(local_part(tensor)):
                    foreign.add(storage_of(tensor))
        trees, tensors = take_apart([(s.state, s.master) for s in states], foreign, extent)
        layout = StateLayout.of(tensors)
        target = extent
        if layout != self.layout or extent is None:
            target = frames.take(layout.nbytes) if layout.pieces else None
        if target is not None:
            layout.fill(target, tensors)
        if extent is not None and extent is not target:
            frames.give(extent)
        self.trees, self.layout = trees, layout
        return target

    def make_inner(self, param_groups: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer:
        """A new optimizer for these parameters, with the states that its constructor makes."""
        return self._inners.make(self.options(param_groups))

    def _ready(self, param_groups: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer:
        """The inner optimizer. When it is made, so are the states that its constructor makes."""
        if self.inner is None:
            self.inner = self.make_inner(param_groups)
        return self.inner

    def _attach(self, extent: torch.Tensor | None) -> None:
        views = []
        if self.layout is not None and extent is not None:
            views = [
                view if piece.device.type == "cpu" else view.to(piece.device)
                for piece, view in zip(self.layout.pieces, self.layout.views(extent), strict=True)
            ]
        kept: list[MemberState | None] = [MemberState(*tree.state(views)) for tree in self.trees]
        for member, of_it in zip(self.members, kept or [None] * len(self.members), strict=True):
            if member.master is not None:
                member.master.attach(None if of_it is None else of_it.master)
            if of_it is not None and of_it.state is not None and self.inner is not None:
                self.inner.state[member.updated] = of_it.state

    def _detach(self) -> list[MemberState]:
        found = []
        for member in self.members:
            state = None if self.inner is None else self.inner.state.pop(member.updated, None)
            master = None if member.master is None else member.master.detach()
            found.append(MemberState(state, master))
        return found


def divide(
    members: Iterable[Member], sub_group_bytes: int, first: int, inners: InnerOptimizers
) -> list[SubGroup]:
    """Parameters in order, in sub-groups whose states take up to that many bytes. One whose own
    states take more is a sub-group of its own.
    """
    parts: list[list[Member]] = []
    room = 0
    for member in members:
        if not parts or member.estimate > room:
            parts.append([])
            room = sub_group_bytes
        parts[-1].append(member)
        room -= member.estimate
    return [SubGroup(first + at, part, inners) for at, part in enumerate(parts)]
