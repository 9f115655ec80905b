"""Memory that offloading did not free, since somebody else refers to it."""

from __future__ import annotations

import logging

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_logger = logging.getLogger("pinned_manager")


class Leftovers:
    """The storages that a move has left."""

    def __init__(self) -> None:
        self._left: list[tuple[StorageWeakRef, int]] = []

    def expect_freed(self, storage: torch.UntypedStorage) -> None:
        """``storage`` should go when the move is over."""
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._left.append((reference, storage.nbytes()))

    def report(self) -> None:
        """Warn of what is still there: it costs memory, and does not see later changes."""
        kept = [nbytes for storage, nbytes in self._left if not _is_freed(storage)]
        if kept:
            _logger.warning(
                "%d of %d offloaded storages, %d bytes, are not freed: other tensors refer to "
                "them (a view, .detach(), a state_dict, a graph that is still to be used). They "
                "keep the old values, and will not see changes after a reload; drop them first, or "
                "give flat buffers with the target",
                len(kept),
                len(self._left),
                sum(kept),
            )


def _is_freed(storage: StorageWeakRef) -> bool:
    freed: bool = storage.expired()  # type: ignore[no-untyped-call]
    return freed
