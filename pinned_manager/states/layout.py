"""A tensor as a view of a storage: taken off it, and put on another one, as the same object.

The object stays, so parameters stay in their groups and gradients at their parameters; only
``.data`` is exchanged. Its storage is never resized to nothing instead: torch crashes on a tensor
that has elements but no memory, while it refuses one without elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Layout:
    """Where a tensor's elements are in its storage; sizes and strides in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conjugated: bool
    negated: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        return Layout(
            tuple(tensor.size()),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )


def attach(tensor: torch.Tensor, storage: torch.UntypedStorage, layout: Layout) -> None:
    """Make ``tensor`` a view of ``storage``."""
    # An inference tensor stays one, and an ordinary one does not become one.
    with torch.inference_mode(tensor.is_inference()):
        view = torch.empty(0, dtype=tensor.dtype, device=storage.device)
        view.set_(storage, layout.offset, layout.size, layout.stride)
        if layout.conjugated:
            view = view.conj()
        if layout.negated:
            view = torch._neg_view(view)
        tensor.data = view


def detach(tensor: torch.Tensor) -> None:
    """Leave ``tensor`` without elements: shape (0,), on the device where it is."""
    with torch.inference_mode(tensor.is_inference()):
        tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)


def octets(storage: torch.UntypedStorage) -> torch.Tensor:
    """All bytes of a storage, shape (nbytes,), uint8."""
    view = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return view.set_(storage, 0, (storage.nbytes(),), (1,))
