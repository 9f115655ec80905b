"""One storage with all known tensors on it, and where its bytes are: at home, in host memory, or in
a file.

Storages move as a whole, and no other way: so what shared memory shares it again, and strides,
offsets and the bytes between the elements come back as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils.weak import TensorWeakRef

from pinned_manager.device import Event
from pinned_manager.states.kinds import OffloadStateTypeEnum
from pinned_manager.states.layout import Layout, attach, detach
from pinned_manager.states.swap_file import SwapFile


@dataclass(frozen=True)
class Home:
    """Where the storage was before it was offloaded."""

    device: torch.device
    on_host: bool
    pinned: bool  # by the registry, or by torch


@dataclass(frozen=True)
class InHostMemory:
    """Where the storage is: in memory that this package has allocated."""

    storage: torch.UntypedStorage
    ready: Event | None  # of a copy that may still be under way


@dataclass(frozen=True)
class InFile:
    """Where the storage is: at a byte of a file."""

    file: SwapFile
    offset: int


@dataclass
class _Member:
    """A tensor on the storage. Not held: whoever drops a gradient has dropped it."""

    tensor: TensorWeakRef
    layout: Layout | None = None  # while the tensor is empty


class MovedStorage:
    """A storage of ``nbytes`` bytes that has left its home, or is about to."""

    def __init__(self, kind: OffloadStateTypeEnum, home: Home, tensors: list[torch.Tensor]) -> None:
        self.kind = kind
        self.home = home
        self.nbytes = tensors[0].untyped_storage().nbytes()
        self.place: InHostMemory | InFile | None = None  # None: at home
        self._members = [_Member(TensorWeakRef(tensor)) for tensor in tensors]

    def tensors(self) -> list[torch.Tensor]:
        """The tensors that are still to be served: alive, and not given other memory meanwhile."""
        return [tensor for _, tensor in self._present()]

    def storage(self) -> torch.UntypedStorage | None:
        """The bytes, if they are in memory. None too when no tensor is left at home."""
        if isinstance(self.place, InHostMemory):
            return self.place.storage
        tensors = self.tensors() if self.place is None else []
        return tensors[0].untyped_storage() if tensors else None

    @property
    def has_emptied(self) -> bool:
        """True while tensors have no elements."""
        return any(member.layout is not None for member, _ in self._present())

    def put_on(self, storage: torch.UntypedStorage, place: InHostMemory | None) -> None:
        """The bytes are in ``storage`` now: let the tensors be views of it, here and from now on.

        Nothing may interrupt it.
        """
        for member, tensor in self._present():
            layout = member.layout or Layout.of(tensor)
            # torch forgets the hooks of gradient accumulation (DistributedDataParallel's) when a
            # parameter changes its device, so such a parameter waits as an empty one.
            if place is not None and not self.home.on_host and tensor.requires_grad:
                member.layout = layout
                detach(tensor)
            else:
                member.layout = None
                attach(tensor, storage, layout)
        self.place = place

    def put_in(self, place: InFile) -> None:
        """The bytes are in a file now: leave the tensors empty. Nothing may interrupt it."""
        for member, tensor in self._present():
            member.layout = member.layout or Layout.of(tensor)
            detach(tensor)
        self.place = place

    def drop(self) -> None:
        """Leave the tensors empty for good."""
        for _, tensor in self._present():
            detach(tensor)
        self._members.clear()
        self.place = None

    def _present(self) -> Iterator[tuple[_Member, torch.Tensor]]:
        for member in self._members:
            tensor = member.tensor()
            if tensor is not None and self._is_ours(member, tensor):
                yield member, tensor

    def _is_ours(self, member: _Member, tensor: torch.Tensor) -> bool:
        """False when somebody has assigned to ``.data``: that is newer than what was moved."""
        storage = tensor.untyped_storage()
        if member.layout is not None:
            return storage.nbytes() == 0
        return (
            not isinstance(self.place, InHostMemory) or storage._cdata == self.place.storage._cdata
        )
