"""Optimizer states of some parameters as one flat extent of bytes, and back.

A state is whatever an optimizer keeps for a parameter: tensors and numbers in a dict, maybe nested.
Tensors with memory of their own, of DTensors the local part, move to the extent, and a marker stays
at their place in the tree. Everything else stays where it is: numbers, 0-dim tensors (``step``),
tensors of other kinds, and those that share memory with something else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from aio.swap.layout import TensorSpec, empty_as, is_dense, octets_of
from aio.swap.sharding import Sharding, local_part

PIECE_ALIGNMENT = 64  # bytes: a cache line, and any dtype
EXTENT_ALIGNMENT = 4096  # bytes: whole blocks go past the page cache

# What an optimizer keeps for each parameter; None where it keeps nothing.
States = Sequence[Any]


@dataclass(frozen=True)
class Piece:
    """Where a tensor lies in the extent."""

    spec: TensorSpec
    device: torch.device  # where the optimizer wants it
    offset: int


@dataclass(frozen=True)
class StateLayout:
    """The tensors of an extent."""

    pieces: tuple[Piece, ...]
    nbytes: int  # of the extent, a multiple of EXTENT_ALIGNMENT

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> StateLayout:
        pieces = []
        offset = 0
        for tensor in tensors:
            nbytes = tensor.numel() * tensor.element_size()
            spec = TensorSpec(tensor.dtype, tensor.shape, tensor.stride(), nbytes)
            pieces.append(Piece(spec, tensor.device, offset))
            offset += round_up(nbytes, PIECE_ALIGNMENT)
        return cls(tuple(pieces), round_up(offset, EXTENT_ALIGNMENT))

    def views(self, extent: torch.Tensor) -> list[torch.Tensor]:
        """The tensors in the memory of an extent: (nbytes or more,) uint8."""
        return [
            empty_as(
                piece.spec,
                extent[piece.offset : piece.offset + piece.spec.nbytes].view(piece.spec.dtype),
            )
            for piece in self.pieces
        ]

    def fill(self, extent: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        """Copy tensors to their places; those that are there already are left alone."""
        extent_storage = extent.untyped_storage().data_ptr()
        moves = []
        for view, tensor in zip(self.views(extent), tensors, strict=True):
            if tensor.data_ptr() == view.data_ptr():
                continue
            if tensor.untyped_storage().data_ptr() == extent_storage:
                tensor = tensor.clone()  # two tensors that changed places
            moves.append((view, tensor))
        for view, tensor in moves:
            # As bytes where both lie in host memory: a copy of values may change the bits of a NaN.
            if tensor.device.type == "cpu":
                octets_of(view).copy_(octets_of(tensor))
            else:
                view.copy_(tensor)


@dataclass(frozen=True)
class Swapped:
    """In a tree, at the place of a tensor: which piece of the extent it is."""

    piece: int
    sharding: Sharding | None  # of a DTensor

    def tensor(self, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        piece = pieces[self.piece]
        return piece if self.sharding is None else self.sharding.whole(piece)


@dataclass(frozen=True)
class StateTree:
    """A state without its swapped tensors."""

    leaves: list[Any]
    spec: TreeSpec

    def state(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The state, with the tensors of the extent."""
        leaves = [
            leaf.tensor(tensors) if isinstance(leaf, Swapped) else leaf for leaf in self.leaves
        ]
        return tree_unflatten(leaves, self.spec)

    def marked(self) -> Any:
        """The state, with Swapped in place of the tensors of the extent."""
        return tree_unflatten(self.leaves, self.spec)


def take_apart(
    states: States, foreign: set[int], extent: torch.Tensor | None
) -> tuple[list[StateTree], list[torch.Tensor]]:
    """The trees of states, and the tensors that go to an extent.

    ``foreign``: addresses of storages that belong to others (parameters, gradients). ``extent`` is
    where the tensors were before; that they share it is fine.
    """
    flattened = [tree_flatten(state) for state in states]
    shared = Counter(
        storage_of(leaf) for leaves, _ in flattened for leaf in leaves if is_movable(leaf)
    )
    taken = foreign | {storage for storage, uses in shared.items() if uses > 1}
    if extent is not None:
        taken.discard(extent.untyped_storage().data_ptr())
    trees: list[StateTree] = []
    tensors: list[torch.Tensor] = []
    for leaves, spec in flattened:
        kept: list[Any] = []
        for leaf in leaves:
            if is_movable(leaf) and storage_of(leaf) not in taken:
                kept.append(Swapped(len(tensors), Sharding.of(leaf)))
                tensors.append(local_part(leaf).detach())
            else:
                kept.append(leaf)
        trees.append(StateTree(kept, spec))
    return trees, tensors


def is_movable(leaf: Any) -> bool:
    """Whether a leaf of a state is a tensor whose memory here can be moved, byte by byte."""
    if not isinstance(leaf, torch.Tensor) or leaf.requires_grad:
        return False
    part = local_part(leaf)
    return (
        is_plain(part)
        and part.dim() > 0
        and part.numel() > 0
        and not (part.is_meta or part.is_nested or part.is_quantized)
        and not (part.is_conj() or part.is_neg())
        and is_dense(part)
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is a tensor of torch's own class, with strides."""
    return type(tensor.detach()) is torch.Tensor and tensor.layout == torch.strided


def storage_of(tensor: torch.Tensor) -> int:
    """The address of the memory that this rank has of it."""
    return local_part(tensor).untyped_storage().data_ptr()


def round_up(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment
