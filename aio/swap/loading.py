"""Loads a state_dict sub-group by sub-group: all of it, or nothing has changed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_only

from aio.swap.inner import InnerOptimizers
from aio.swap.local_parts import CONVERT, LoadedParts
from aio.swap.masters import MASTER_KEY
from aio.swap.pipeline import Pipeline
from aio.swap.sharding import copy_of, is_sharded, local_part
from aio.swap.state_layout import is_movable
from aio.swap.store_future import StoreFuture
from aio.swap.sub_groups import NOT_OPTIONS, Member, MemberState, SubGroup

_logger = logging.getLogger("aio.swap")

Loaded = tuple[list[SubGroup], dict[int, dict[str, Any]]]


def states_of_members(
    state_dict: Mapping[str, Any],
    param_groups: Sequence[Mapping[str, Any]],
    sub_groups: Sequence[SubGroup],
    inners: InnerOptimizers,
) -> dict[Member, Any]:
    """The state for each parameter that has one in the dict. ValueError, with the parameter, for
    what does not match it.
    """
    saved_groups = state_dict["param_groups"]
    if len(saved_groups) != len(param_groups):
        raise ValueError(
            "loaded state dict has a different number of parameter groups: "
            f"{len(saved_groups)}, but the optimizer has {len(param_groups)}"
        )
    for number, (saved, mine) in enumerate(zip(saved_groups, param_groups, strict=True)):
        if len(saved["params"]) != len(mine["params"]):
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of "
                f"optimizer's group: group {number} has {len(saved['params'])} parameters, but the "
                f"optimizer's has {len(mine['params'])}"
            )
        _check_order(saved.get("param_names"), mine.get("param_names"))
    ids = [key for group in saved_groups for key in group["params"]]
    states = state_dict["state"]
    parts = LoadedParts(state_dict)
    found = {}
    for member in (member for sub_group in sub_groups for member in sub_group.members):
        key = ids[member.index]
        if key in states:
            found[member] = parts.restored(key, states[key], member)
    strange = len(states) - len(found)
    if strange:
        _logger.warning("%d states of the loaded dict belong to no parameter and are left", strange)
    for member, state in found.items():
        _check_shapes(member, state, param_groups[member.group], inners)
    return found


def load_sub_groups(
    states: Mapping[Member, Any],
    saved_groups: Sequence[Mapping[str, Any]],
    param_groups: Sequence[Mapping[str, Any]],
    sub_groups: Sequence[SubGroup],
    pipeline: Pipeline,
    inners: InnerOptimizers,
) -> Loaded:
    """New sub-groups in place of the old ones, their states in the store, and the hyper-parameters
    of the param groups, by their numbers. The old ones are as before, whatever happens.
    """
    made: list[SubGroup] = []
    options: dict[int, dict[str, Any]] = {}
    frame: torch.Tensor | None = None  # filled, and not yet being written
    writing: tuple[torch.Tensor, StoreFuture] | None = None
    try:
        for old in sub_groups:
            new = SubGroup(old.number, old.members, inners)
            made.append(new)
            kept = _cast(new, states, saved_groups, param_groups, options)
            frame = new.settle(kept, None, pipeline.frames)
            if writing is not None:
                landed, writing = writing, None
                _land(pipeline, landed)
            if frame is not None:
                new.stored = pipeline.new_name(new)
                writing = (frame, pipeline.put_new(new.stored, new.nbytes, frame))
                frame = None
        if writing is not None:
            landed, writing = writing, None
            _land(pipeline, landed)
    except BaseException:
        if writing is not None:
            writing[1].exception()
            pipeline.frames.give(writing[0])
        if frame is not None:
            pipeline.frames.give(frame)
        for new in made:
            pipeline.forget(new)
        raise
    return made, options


def _land(pipeline: Pipeline, writing: tuple[torch.Tensor, StoreFuture]) -> None:
    frame, future = writing
    try:
        future.result()
    finally:
        pipeline.frames.give(frame)


def _cast(
    sub_group: SubGroup,
    states: Mapping[Member, Any],
    saved_groups: Sequence[Mapping[str, Any]],
    param_groups: Sequence[Mapping[str, Any]],
    options: dict[int, dict[str, Any]],
) -> list[MemberState]:
    """States as the optimizer's own load_state_dict() makes them of loaded ones."""
    members = sub_group.members
    inner = sub_group.inner = sub_group.make_inner(param_groups)
    groups: dict[int, dict[str, Any]] = {}
    loaded: dict[int, Any] = {}
    masters: list[torch.Tensor | None] = []
    for position, member in enumerate(members):
        if member.group not in groups:
            saved = saved_groups[member.group]
            groups[member.group] = {k: v for k, v in saved.items() if k not in NOT_OPTIONS}
            groups[member.group]["params"] = []
        groups[member.group]["params"].append(position)
        state = states.get(member)
        master = None
        if isinstance(state, Mapping) and MASTER_KEY in state:
            if member.master is not None:
                master = state[MASTER_KEY].to(member.parameter.device, torch.float32)
            state = {k: v for k, v in state.items() if k != MASTER_KEY} or None
        if state is not None:
            loaded[position] = tree_map_only(torch.Tensor, _detached, state)
        masters.append(master)
    inner.load_state_dict({"state": loaded, "param_groups": list(groups.values())})
    for number, group in zip(groups, inner.param_groups, strict=True):
        options[number] = {k: v for k, v in group.items() if k != "params"}
    return [
        MemberState(inner.state.pop(member.updated, None), master)
        for member, master in zip(members, masters, strict=True)
    ]


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    """Of the caller's dict: what stays in memory must not be the caller's own (``step``)."""
    return tensor if is_movable(tensor) else copy_of(tensor)


def _check_order(saved: Sequence[str] | None, mine: Sequence[str] | None) -> None:
    if not saved or not mine or list(saved) == list(mine) or set(saved) != set(mine):
        return  # other names are no error to torch either
    at = next(i for i, (a, b) in enumerate(zip(saved, mine, strict=True)) if a != b)
    raise ValueError(
        f"loaded state dict has the same parameters in another order: at position {at} is "
        f"{saved[at]!r}, but the optimizer has {mine[at]!r}; make the optimizer with the order "
        "that was saved"
    )


def _check_division(member: Member, key: str, leaf: torch.Tensor) -> None:
    """A DTensor must be divided among the same ranks as the parameter."""
    if not is_sharded(leaf):
        return
    parameter: Any = member.parameter
    theirs: Any = leaf
    mesh = parameter.device_mesh if is_sharded(parameter) else None
    if theirs.device_mesh != mesh:
        divided = "an ordinary tensor" if mesh is None else f"divided among {mesh}"
        raise ValueError(
            f"state {key} for {member.label} is a DTensor that is divided among "
            f"{theirs.device_mesh}, but the parameter is {divided}; {CONVERT}"
        )


def _check_shapes(
    member: Member, state: Any, group: Mapping[str, Any], inners: InnerOptimizers
) -> None:
    options = {k: v for k, v in group.items() if k not in NOT_OPTIONS}
    parameter = member.parameter
    sample = inners.sample(options, member.group, parameter, member.updated.dtype)
    expected = {} if sample is None else dict(sample.shapes)
    for path, leaf in tree_flatten_with_path(state)[0]:
        key = keystr(path)
        if not isinstance(leaf, torch.Tensor):
            continue
        _check_division(member, key, leaf)
        full = (True,) * parameter.dim() if key == f"['{MASTER_KEY}']" else expected.get(key)
        if full is None:
            continue
        # An optimizer may keep ordinary tensors for what this rank has of a parameter.
        shape = parameter.shape if is_sharded(leaf) else local_part(parameter).shape
        wanted = tuple(size if whole else 1 for size, whole in zip(shape, full, strict=True))
        if tuple(leaf.shape) != wanted:
            raise ValueError(
                f"state {key} for {member.label} is of shape {tuple(leaf.shape)}, but a parameter "
                f"of shape {tuple(shape)} needs {wanted}; the states are of other parameters, or "
                "of the same ones in another order"
                + ("" if shape == parameter.shape else f"; whole states of DTensors: {CONVERT}")
            )
