"""Optimizer states of some parameters as one flat extent of bytes, and back.

A state is whatever an optimizer keeps for a parameter: tensors and numbers in a dict, maybe nested.
Tensors with memory of their own move to the extent, and a marker stays at their place in the tree.
Everything else stays where it is: numbers, 0-dim tensors (``step``), tensors of other kinds, and
those that share memory with something else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from aio.swap.layout import TensorSpec, empty_as, is_dense, octets_of

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


@dataclass(frozen=True)
class StateTree:
    """A state without its swapped tensors."""

    leaves: list[Any]
    spec: TreeSpec

    def state(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The state, with the tensors of the extent."""
        leaves = [
            tensors[leaf.piece] if isinstance(leaf, Swapped) else leaf for leaf in self.leaves
        ]
        return tree_unflatten(leaves, self.spec)


def take_apart(
    states: States, foreign: set[int], extent: torch.Tensor | None
) -> tuple[list[StateTree], list[torch.Tensor]]:
    """The trees of states, and the tensors that go to an extent.

    ``foreign``: addresses of storages that belong to others (parameters, gradients). ``extent`` is
    where the tensors were before; that they share it is fine.
    """
    flattened = [tree_flatten(state) for state in states]
    shared = Counter(
        leaf.untyped_storage().data_ptr()
        for leaves, _ in flattened
        for leaf in leaves
        if is_plain(leaf)
    )
    taken = foreign | {storage for storage, uses in shared.items() if uses > 1}
    if extent is not None:
        taken.discard(extent.untyped_storage().data_ptr())
    trees: list[StateTree] = []
    tensors: list[torch.Tensor] = []
    for leaves, spec in flattened:
        kept: list[Any] = []
        for leaf in leaves:
            if is_plain(leaf) and leaf.untyped_storage().data_ptr() not in taken:
                kept.append(Swapped(len(tensors)))
                tensors.append(leaf.detach())
            else:
                kept.append(leaf)
        trees.append(StateTree(kept, spec))
    return trees, tensors


def is_plain(leaf: Any) -> bool:
    """Whether a leaf of a state is a tensor that can be moved, byte by byte."""
    return (
        isinstance(leaf, torch.Tensor)
        and type(leaf.detach()) is torch.Tensor
        and leaf.layout == torch.strided
        and leaf.dim() > 0
        and leaf.numel() > 0
        and not (leaf.is_meta or leaf.is_nested or leaf.is_quantized)
        and not (leaf.is_conj() or leaf.is_neg() or leaf.requires_grad)
        and is_dense(leaf)
    )


def round_up(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment
