"""Moves to a file and back, through aio_handle, which is the layer above: it is imported when a
move needs it.

The handle reads and writes from where the bytes lie, or through its own few blocks, so memory does
not grow with what is moved. It lives for one move: no thread and no ring waits for the next one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

from _deepnvme.io import AioError
from pinned_manager.states.interrupts import deferred_signals
from pinned_manager.states.layout import octets
from pinned_manager.states.leftovers import Leftovers
from pinned_manager.states.moved_storage import InFile, InHostMemory, MovedStorage
from pinned_manager.states.swap_file import SwapFile

# So that every storage starts where transfers past the page cache may start, on any drive.
ALIGNMENT = 4096


class _Handle(Protocol):
    """What is used of aio_handle."""

    def pwrite_many(self, items: list[Any]) -> int: ...
    def pread_many(self, items: list[Any]) -> int: ...


def _new_handle(directories: Sequence[Path]) -> AbstractContextManager[_Handle]:
    from aio.profiled_handle import handle_for

    return handle_for(directories)


def move_to_file(storages: Sequence[MovedStorage], directory: Path, leftovers: Leftovers) -> None:
    """Write storages, wherever in memory they are, to a new file, and then let go of the memory.

    When it fails everything is where it was, and there is no file. Raises AioError, or OSError when
    the file cannot be made.
    """
    sources = [
        (storage, memory)
        for storage in storages
        if (memory := storage.storage()) is not None  # else its tensors have gone meanwhile
    ]
    if not sources:
        return
    for storage, memory in sources:
        if isinstance(storage.place, InHostMemory) and storage.place.ready is not None:
            storage.place.ready.synchronize()
        leftovers.expect_freed(memory)
    offsets, nbytes = _offsets([storage for storage, _ in sources])
    file = SwapFile(directory)
    try:
        with _new_handle([directory]) as handle:
            handle.pwrite_many(
                [
                    (octets(memory), file.descriptor, offset)
                    for (_, memory), offset in zip(sources, offsets, strict=True)
                ]
            )
    except BaseException as error:
        file.close()
        if isinstance(error, AioError):
            raise _not_written(error, file, nbytes) from error
        raise
    with deferred_signals():
        for (storage, _), offset in zip(sources, offsets, strict=True):
            storage.put_in(InFile(file, offset))


def move_from_file(
    storages: Sequence[MovedStorage],
    allocate: Callable[[MovedStorage], torch.Tensor],
    to_home: bool,
) -> None:
    """Read storages into memory that ``allocate`` gives: all of them or, when it fails, none.

    Raises AioError; the file stays then.
    """
    places = [(storage, storage.place) for storage in storages if isinstance(storage.place, InFile)]
    if not places:
        return
    targets = [allocate(storage) for storage, _ in places]
    try:
        with _new_handle(sorted({place.file.path.parent for _, place in places})) as handle:
            handle.pread_many(
                [
                    (target, place.file.descriptor, place.offset)
                    for target, (_, place) in zip(targets, places, strict=True)
                ]
            )
    except AioError as error:
        raise _not_read(error, places) from error
    with deferred_signals():
        for (storage, _), target in zip(places, targets, strict=True):
            memory = target.untyped_storage()
            storage.put_on(memory, None if to_home else InHostMemory(memory, None))


def _offsets(storages: Sequence[MovedStorage]) -> tuple[list[int], int]:
    """The byte of the file where each storage starts, and the size of the file."""
    offsets, end = [], 0
    for storage in storages:
        offsets.append(-(-end // ALIGNMENT) * ALIGNMENT)
        end = offsets[-1] + storage.nbytes
    return offsets, end


def _not_written(error: AioError, file: SwapFile, nbytes: int) -> AioError:
    return _whole(
        error,
        f"offloading needs {nbytes} bytes in {file.path.parent}, where {file.available} were "
        "available; the states are still in memory",
        file.path,
        nbytes,
    )


def _not_read(error: AioError, places: Sequence[tuple[MovedStorage, InFile]]) -> AioError:
    return _whole(
        error,
        "the states are still offloaded; reload_states can be called again",
        places[0][1].file.path,
        sum(storage.nbytes for storage, _ in places),
    )


def _whole(error: AioError, text: str, path: Path, nbytes: int) -> AioError:
    """The error of some requests, which are its cause, as that of the move."""
    whole = AioError(error.errno, f"{os.strerror(error.errno or 0)}: {text}", str(path))
    whole.offset, whole.nbytes, whole.nbytes_done = 0, nbytes, 0
    return whole
