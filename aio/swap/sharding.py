"""DTensors: what this rank has of one is swapped, and becomes the same DTensor again.

1. Nothing here communicates, so that a rank that fails leaves no other one waiting for it.
2. An optimizer may communicate in its step, which ranks must do in the same order. So the order of
   parameters follows from sizes that are the same on all ranks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_MODULES = ("torch.distributed.tensor", "torch.distributed._tensor")  # the second: torch 2.4
_LOCAL = "_local_tensor"  # the attribute, which fully_shard() replaces too


def is_sharded(leaf: Any) -> bool:
    """Whether it is a DTensor."""
    cls = _class_of_dtensors()
    return cls is not None and isinstance(leaf, cls)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a DTensor; any other tensor itself."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    with torch.no_grad():
        part: torch.Tensor = sharded.to_local()
    return part


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """With memory of its own. ``clone`` of a DTensor may communicate: it adds up partial sums."""
    sharding = Sharding.of(tensor)
    part = local_part(tensor).detach().clone()
    return part if sharding is None else sharding.whole(part)


def replace_local_part(tensor: torch.Tensor, part: torch.Tensor) -> None:
    """Give a DTensor other memory."""
    setattr(tensor, _LOCAL, part)


def largest_part(tensor: torch.Tensor) -> int:
    """The most elements that any rank has of it: the same number on all of them."""
    if not is_sharded(tensor):
        return tensor.numel()
    sharded: Any = tensor
    sizes = list(tensor.shape)
    for placement, ranks in zip(sharded.placements, sharded.device_mesh.shape, strict=True):
        dim = getattr(placement, "dim", None)
        if dim is not None:
            sizes[dim] = -(-sizes[dim] // ranks)
    return math.prod(sizes)


@dataclass(frozen=True)
class Sharding:
    """A DTensor without its local tensor."""

    mesh: Any
    placements: tuple[Any, ...]
    shape: torch.Size  # of the whole
    stride: tuple[int, ...]
    kind: type[Any]
    others: tuple[tuple[str, Any], ...]  # what else its class flattens it to
    context: Any

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Sharding | None:
        """None for what is no DTensor."""
        if not is_sharded(tensor):
            return None
        return cls._of_dtensor(tensor.detach() if tensor.requires_grad else tensor)

    @classmethod
    def _of_dtensor(cls, found: Any) -> Sharding:
        names, context = found.__tensor_flatten__()
        others = tuple((name, getattr(found, name)) for name in names if name != _LOCAL)
        return cls(
            found.device_mesh,
            tuple(found.placements),
            found.shape,
            tuple(found.stride()),
            type(found),
            others,
            context,
        )

    @classmethod
    def like(
        cls,
        part: torch.Tensor,
        mesh: Any,
        placements: Sequence[Any],
        shape: Sequence[int],
        stride: Sequence[int],
    ) -> Sharding:
        """Of a DTensor that has such a part on this rank."""
        made = _class_of_dtensors().from_local(
            torch.empty_like(part, device="meta"),  # any other would move to the mesh's device
            mesh,
            placements,
            run_check=False,
            shape=torch.Size(shape),
            stride=tuple(stride),
        )
        return cls._of_dtensor(made)

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """The DTensor with this part. It stays where it is: fully_shard() with a CPUOffloadPolicy
        has parts in host memory on a mesh of devices, which DTensor.from_local() would move.
        """
        inner = {**dict(self.others), _LOCAL: part}
        made: torch.Tensor = self.kind.__tensor_unflatten__(
            inner, self.context, self.shape, self.stride
        )
        return made


def placement_types() -> Any:
    """The module of Shard and Replicate; None where there is no DTensor."""
    found = (sys.modules.get(f"{name}.placement_types") for name in _MODULES)
    return next((module for module in found if module is not None), None)


def _class_of_dtensors() -> Any:
    """None where nobody has imported its module, which takes a second: then there is none."""
    found = (getattr(sys.modules.get(name), "DTensor", None) for name in _MODULES)
    return next((cls for cls in found if cls is not None), None)
