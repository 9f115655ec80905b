"""Saves the states of all sub-groups without having more than one of them in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_with_path

from aio.swap.checkpoint import SavedTensor, replacing, write_archive
from aio.swap.layout import TensorSpec, is_dense
from aio.swap.local_parts import SavedParts
from aio.swap.masters import MASTER_KEY
from aio.swap.sharding import Sharding, local_part
from aio.swap.state_layout import Swapped, is_plain
from aio.swap.state_view import SwappedStates
from aio.swap.sub_groups import Member, MemberState, SubGroup


def save_states(
    path: Path,
    sub_groups: Sequence[SubGroup],
    states: SwappedStates,
    param_groups: Sequence[Mapping[str, Any]],
    progress: bool,
) -> None:
    """Write what ``torch.save(optimizer.state_dict(), path)`` would, but for DTensors what this
    rank has of them, and replace ``path`` by it.

    The states of ``param_groups`` are by ``states``; their ``params`` are indices.
    """
    records = itertools.count()
    sizes: list[int] = []
    parts = SavedParts()

    def saved(spec: TensorSpec) -> SavedTensor:
        sizes.append(spec.nbytes)
        return SavedTensor(
            next(records), spec.dtype, tuple(spec.shape), tuple(spec.stride), spec.nbytes
        )

    def described(leaf: Any) -> Any:
        return saved(_spec_of(_plain(leaf))) if isinstance(leaf, torch.Tensor) else leaf

    def described_state(sub_group: SubGroup, member: Member, state: Any) -> Any:
        def one(path: tuple[Any, ...], leaf: Any) -> Any:
            if isinstance(leaf, Swapped) and sub_group.layout is not None:
                made, sharding = saved(sub_group.layout.pieces[leaf.piece].spec), leaf.sharding
            elif isinstance(leaf, torch.Tensor):
                made, sharding = described(local_part(leaf)), Sharding.of(leaf)
            else:
                return leaf
            parts.add(member, path, sharding, made)
            return made

        return tree_map_with_path(one, state)

    groups = tree_map(described, list(param_groups))
    by_index = {
        member.index: described_state(sub_group, member, state)
        for sub_group in sub_groups
        for member, state in _marked_states(sub_group, param_groups)
    }
    whole = {"state": by_index, "param_groups": groups, **parts.described()}

    def tensors() -> Iterator[torch.Tensor]:
        yield from _tensors_of(list(param_groups))
        for sub_group in sub_groups:
            for _, state in states.stream(sub_group, copy=False):
                yield from _tensors_of(state)

    with _progress(progress, sum(sizes)) as told, replacing(path) as file:
        write_archive(file, whole, tensors(), told)


def _marked_states(
    sub_group: SubGroup, param_groups: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Member, Any]]:
    """As SwappedStates.stream(), with Swapped in place of tensors that are swapped out."""
    if sub_group.layout is None:
        kept = sub_group.states(None, param_groups)
    else:
        kept = [MemberState(*tree.marked()) for tree in sub_group.trees]
    for member, of_it in zip(sub_group.members, kept, strict=True):
        state = of_it.state
        if of_it.master is not None:
            state = {**(state or {}), MASTER_KEY: of_it.master}
        if state is not None:
            yield member, state


def _tensors_of(tree: Any) -> Iterator[torch.Tensor]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            yield _plain(local_part(leaf))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    if not is_plain(tensor):
        raise TypeError(
            f"a state is a {type(tensor).__name__} of layout {tensor.layout}, which save() cannot "
            "write; use torch.save(optimizer.state_dict(), path)"
        )
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return tensor if is_dense(tensor) else tensor.contiguous()


def _spec_of(tensor: torch.Tensor) -> TensorSpec:
    nbytes = tensor.numel() * tensor.element_size()
    return TensorSpec(tensor.dtype, tensor.shape, tensor.stride(), nbytes)


def _progress(wanted: bool, total: int) -> Any:
    """A context with a function that is told how many bytes were written."""
    if not wanted:
        return nullcontext(_nothing)
    from tqdm.auto import tqdm  # optional, and only here

    class Told:
        def __enter__(self) -> Callable[[int], object]:
            self._bar = tqdm(total=total, unit="B", unit_scale=True, desc="save")
            update: Callable[[int], object] = self._bar.update
            return update

        def __exit__(self, *exception: object) -> None:
            self._bar.close()

    return Told()


def _nothing(nbytes: int) -> None:
    pass
