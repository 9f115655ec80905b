"""offload_states, reload_states, release: what is called from outside."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from pinned_manager.states.collect import parts_of
from pinned_manager.states.host import (
    home_octets,
    host_octets,
    is_there_already,
    move_from_host,
    move_to_host,
    unpin,
)
from pinned_manager.states.interrupts import deferred_signals
from pinned_manager.states.kinds import included_kinds
from pinned_manager.states.leftovers import Leftovers
from pinned_manager.states.moved_storage import InFile, InHostMemory, MovedStorage
from pinned_manager.states.nvme import move_from_file, move_to_file
from pinned_manager.states.owners import claim, moving


def offload_states(
    target: Any,
    include: str | Iterable[str] | None = None,
    device: str = "cpu",
    pin_memory: bool = True,
    non_blocking: bool = False,
    nvme_path: str | os.PathLike[str] | None = None,
) -> None:
    """Move a training state out of the way: to host memory, or to a file.

    Arguments:
        target: a torch.optim.Optimizer, or a tuple of one and what belongs to it: modules (for
            parameters that the optimizer does not have) and flat tensors (that gradients are views
            of).
        include: members or names of OffloadStateTypeEnum; None for all.
        device: "cpu" (host memory) or "nvme" (a file).
        pin_memory: whether the host memory is page-locked. A storage in host memory that is as
            wanted already stays.
        non_blocking: return before the copies from a device are done; synchronise with the device
            before reading them on the host. To nvme, the bytes are in the file on return.
        nvme_path: an existing directory, for "nvme". It needs room for all that is moved.

    The memory is freed, unless other tensors refer to it; that is logged as a warning. What is
    offloaded already is moved on if ``device`` is the other one. Raises ValueError or TypeError for
    arguments, PinError when memory cannot be locked, AioError when the file cannot be written; then
    what was in memory is there as before. RuntimeError in a forked child.
    """
    optimizer, others = parts_of(target)
    kinds = included_kinds(include)
    directory = _directory(device, nvme_path)
    leftovers = Leftovers()
    with _plain_torch(), moving(optimizer, others) as owner:
        owner.require_own_process()
        claim(owner, optimizer, others)
        storages = [storage for storage in owner.storages if storage.kind in kinds]
        if directory is not None:
            in_memory = [s for s in storages if not isinstance(s.place, InFile)]
            move_to_file(in_memory, directory, leftovers)
        else:
            move_from_file(storages, lambda s: host_octets(s.nbytes, pin_memory), to_home=False)
            at_home = [
                s for s in storages if s.place is None and not is_there_already(s.home, pin_memory)
            ]
            move_to_host(at_home, pin_memory, non_blocking, leftovers)
    leftovers.report()


def reload_states(target: Any, non_blocking: bool = False) -> None:
    """Bring back everything of ``target`` that is offloaded, to where it was.

    With ``non_blocking`` it returns before the copies to a device are done, in the order of the
    device's current stream; the host memory lives until then. Raises AioError when the file cannot
    be read, PinError or torch.OutOfMemoryError when there is no memory; what is not back is still
    offloaded then, and the call can be repeated. RuntimeError in a forked child.
    """
    optimizer, others = parts_of(target)
    with _plain_torch(), moving(optimizer, others) as owner:
        owner.require_own_process()
        move_from_file(owner.storages, home_octets, to_home=True)
        move_from_host(owner.storages, non_blocking)


def release(target: Any) -> None:
    """Give up what is offloaded of ``target``: memory is unpinned, files are gone, at once.

    Tensors that were offloaded are empty afterwards: reload_states first if they are still needed.
    Repeating it is harmless. In a forked child it forgets what the parent has offloaded.
    """
    optimizer, others = parts_of(target)
    with _plain_torch(), moving(optimizer, others) as owner:
        if owner.is_inherited:
            owner.storages.clear()
        with deferred_signals():
            for storage in owner.storages:
                _drop(storage)
            owner.storages.clear()


def _drop(storage: MovedStorage) -> None:
    place = storage.place
    storage.drop()
    if isinstance(place, InFile):
        place.file.close()
    if isinstance(place, InHostMemory):
        unpin(place.storage)


def _plain_torch() -> AbstractContextManager[None]:
    """Whatever default device and modes the caller has set, and whatever subclasses override."""
    context: AbstractContextManager[None] = torch._C.DisableTorchFunction()
    return context


def _directory(device: str, nvme_path: str | os.PathLike[str] | None) -> Path | None:
    """Where to write; None for host memory."""
    if device == "cpu":
        return None
    if device != "nvme":
        raise ValueError(f"device is {device!r}, but must be 'cpu' or 'nvme'")
    if nvme_path is None:
        raise ValueError("device is 'nvme', so nvme_path is needed: a directory on the drive")
    return Path(nvme_path)
