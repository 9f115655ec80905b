"""Moves between home and host memory, storage by storage, so that each frees what it leaves before
the next one allocates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from pinned_manager.accounting import pinned_memory_tag
from pinned_manager.dispatch import is_pinned, pin_empty, unpin_memory
from pinned_manager.locked_tensor import new_locked_tensor
from pinned_manager.states.device_copies import copy_to_device, copy_to_host
from pinned_manager.states.interrupts import deferred_signals
from pinned_manager.states.layout import octets
from pinned_manager.states.leftovers import Leftovers
from pinned_manager.states.moved_storage import Home, InHostMemory, MovedStorage

TAG = "offload_states"


def host_octets(nbytes: int, pinned: bool) -> torch.Tensor:
    """Host memory, shape (nbytes,), uint8. Raises PinError when it cannot be locked."""
    if not pinned:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    with pinned_memory_tag(TAG):
        memory = pin_empty(nbytes, dtype=torch.uint8)
    # Without an accelerator torch pins nothing, but asking to pin a state means to lock it.
    return memory if is_pinned(memory) else new_locked_tensor(nbytes, torch.uint8, TAG)


def home_octets(storage: MovedStorage) -> torch.Tensor:
    """Memory of the kind that the storage had, shape (nbytes,), uint8."""
    home = storage.home
    if home.on_host:
        return host_octets(storage.nbytes, home.pinned)
    return torch.empty(storage.nbytes, dtype=torch.uint8, device=home.device)


def is_there_already(home: Home, pinned: bool) -> bool:
    """True where moving to host memory would change nothing."""
    return home.on_host and (home.pinned or not pinned)


def move_to_host(
    storages: Sequence[MovedStorage], pinned: bool, non_blocking: bool, leftovers: Leftovers
) -> None:
    """From home to host memory: all of them or, when it fails, none."""
    moved: list[MovedStorage] = []
    with deferred_signals() as deferred:
        try:
            for storage in storages:
                deferred.run()
                _to_host(storage, pinned, non_blocking, leftovers)
                moved.append(storage)
            deferred.run()
        except BaseException:
            for storage, place in _in_host_memory(reversed(moved)):
                _to_home(storage, place, non_blocking=False)
            raise


def move_from_host(storages: Sequence[MovedStorage], non_blocking: bool) -> None:
    """Those that are in host memory, to home. When it fails, the rest is where it was, and can be
    moved again.
    """
    with deferred_signals() as deferred:
        for storage, place in _in_host_memory(storages):
            deferred.run()
            _to_home(storage, place, non_blocking)


def unpin(memory: torch.UntypedStorage) -> None:
    """Unlock host memory now, whoever still refers to it."""
    unpin_memory(octets(memory))


def _to_host(storage: MovedStorage, pinned: bool, non_blocking: bool, leftovers: Leftovers) -> None:
    source = storage.storage()
    if source is None:  # its tensors have gone meanwhile
        return
    host = host_octets(storage.nbytes, pinned)
    if storage.home.on_host:
        host.copy_(octets(source))
        ready = None
    else:
        ready = copy_to_host(octets(source), host, non_blocking)
    if ready is None:
        leftovers.expect_freed(source)
    memory = host.untyped_storage()
    storage.put_on(memory, InHostMemory(memory, ready))


def _in_host_memory(
    storages: Iterable[MovedStorage],
) -> Iterator[tuple[MovedStorage, InHostMemory]]:
    for storage in storages:
        if isinstance(storage.place, InHostMemory):
            yield storage, storage.place


def _to_home(storage: MovedStorage, place: InHostMemory, non_blocking: bool) -> None:
    if storage.home.on_host:
        home = home_octets(storage).copy_(octets(place.storage))
    else:
        home = copy_to_device(octets(place.storage), storage.home.device, non_blocking)
    storage.put_on(home.untyped_storage(), None)
