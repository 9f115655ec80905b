"""DTensors in a checkpoint file: each rank saves its parts, and what they are parts of.

1. A part is saved as an ordinary tensor in the place of the DTensor. So any program can read the
   file, with no process group, whatever a version of torch pickles of a DTensor.
2. Under ``"local_parts"`` the file says whose parts these are, and for each one, by parameter and
   path in its state, of what DTensor. Parts of two ranks may have the same shape, so that is
   compared before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_map_with_path

from aio.swap.checkpoint import SavedTensor
from aio.swap.sharding import Sharding, placement_types
from aio.swap.sub_groups import Member

LOCAL_PARTS = "local_parts"  # besides "state" and "param_groups"
_PLACEMENTS = {"Replicate": (), "Shard": ("dim",), "_StridedShard": ("dim", "split_factor")}
CONVERT = (
    "use get_optimizer_state_dict() and set_optimizer_state_dict() of "
    "torch.distributed.checkpoint.state_dict to load states that were divided otherwise"
)


class SavedParts:
    """What a file will say about the parts in it."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[str, Any]] = {}
        self._meshes: list[Any] = []  # those of large jobs are long, and few

    def add(
        self, member: Member, path: tuple[Any, ...], sharding: Sharding | None, saved: SavedTensor
    ) -> None:
        """What is at that path in the state of a parameter: a DTensor, or None. TypeError for one
        that could not be restored.
        """
        if sharding is None:
            return
        parameter = Sharding.of(member.parameter)
        ranks = sharding.mesh.mesh.tolist()
        if ranks not in self._meshes:
            self._meshes.append(ranks)
        described = {
            "mesh": self._meshes.index(ranks),
            "placements": [_described(placement) for placement in sharding.placements],
            "shape": tuple(sharding.shape),
            "stride": sharding.stride,
        }
        part = torch.empty_strided(saved.shape, saved.stride, dtype=saved.dtype, device="meta")
        restorable = (
            parameter is not None
            and parameter.mesh == sharding.mesh
            and all(type(placement).__name__ in _PLACEMENTS for placement in sharding.placements)
            and _sharding(described, part, sharding.mesh) == sharding
        )
        if not restorable:
            raise TypeError(
                f"state {keystr(path)} of {member.label} is a DTensor with placements "
                f"{sharding.placements} on {sharding.mesh}, which save() cannot write; save what "
                "get_optimizer_state_dict() of torch.distributed.checkpoint.state_dict returns"
            )
        self._parts.setdefault(member.index, {})[keystr(path)] = described

    def described(self) -> dict[str, Any]:
        """What is besides the states, to be pickled; nothing without DTensors."""
        if not self._parts:
            return {}
        rank, world_size = _rank_and_world_size()
        described = {"rank": rank, "world_size": world_size, "meshes": self._meshes}
        return {LOCAL_PARTS: {**described, "parts": self._parts}}


class LoadedParts:
    """What a loaded file says about the parts in it. ValueError where they are another rank's."""

    def __init__(self, state_dict: Mapping[str, Any]) -> None:
        found = state_dict.get(LOCAL_PARTS)
        self._parts: Mapping[Any, Any] = {} if found is None else found["parts"]
        self._meshes = [] if found is None else found["meshes"]
        if found is None:
            return
        rank, world_size = _rank_and_world_size()
        if (found["rank"], found["world_size"]) != (rank, world_size):
            raise ValueError(
                f"the checkpoint has the parts of rank {found['rank']} of {found['world_size']}, "
                f"but this is rank {rank} of {world_size}; each rank loads what it has saved; or "
                f"{CONVERT}"
            )

    def restored(self, key: Any, state: Any, member: Member) -> Any:
        """The state that the file has under ``key``, with DTensors. ValueError where the parameter
        is not divided among the same ranks.
        """
        parts = self._parts.get(key)
        if not parts:
            return state
        sharding = Sharding.of(member.parameter)
        mesh = None if sharding is None else sharding.mesh
        ranks = None if mesh is None else mesh.mesh.tolist()

        def one(path: tuple[Any, ...], leaf: Any) -> Any:
            part = parts.get(keystr(path))
            if part is None:
                return leaf
            saved = self._meshes[part["mesh"]]
            if saved != ranks:
                divided = "an ordinary tensor" if ranks is None else f"divided among {ranks}"
                raise ValueError(
                    f"state {keystr(path)} for {member.label} is a part of a tensor that is "
                    f"divided among ranks {saved}, but the parameter is {divided}; {CONVERT}"
                )
            return _sharding(part, leaf, mesh).whole(leaf)

        return tree_map_with_path(one, state)


def _described(placement: Any) -> Any:
    name = type(placement).__name__
    return (name, *(getattr(placement, field) for field in _PLACEMENTS.get(name, ())))


def _sharding(described: Mapping[str, Any], part: torch.Tensor, mesh: Any) -> Sharding:
    """Of a DTensor with such a part."""
    placements = []
    for name, *values in described["placements"]:
        fields = dict(zip(_PLACEMENTS[name], values, strict=True))
        placements.append(getattr(placement_types(), name)(**fields))
    return Sharding.like(part, mesh, placements, described["shape"], described["stride"])


def _rank_and_world_size() -> tuple[int, int]:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()
