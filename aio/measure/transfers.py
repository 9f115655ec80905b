"""How the bytes of a handle went, as the handle itself has counted them; page-locked buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

PATHS = {
    "fixed": "direct, fixed buffers",
    "direct": "direct",
    "staged": "direct, staged copy",
    "buffered": "page cache",
}

# O_DIRECT may be accepted there, but has no device behind it.
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})


@contextmanager
def pinned(owner: Any, nbytes: int) -> Iterator[torch.Tensor]:
    """A page-locked uint8 tensor of `nbytes`, present in memory, released at the end."""
    tensor = owner.new_cpu_locked_tensor(nbytes, torch.empty(0, dtype=torch.uint8))
    tensor.fill_(1)
    try:
        yield tensor
    finally:
        owner.free_cpu_locked_tensor(tensor)


def bytes_by_path(owner: Any) -> dict[str, int]:
    """Bytes that the handle has moved so far, read and written, for each of `PATHS`."""
    sides = owner.stats()["bytes"]
    return {path: sides["read"][path] + sides["write"][path] for path in PATHS}


def moved_since(owner: Any, before: dict[str, int]) -> dict[str, int]:
    """What has been added to `bytes_by_path` since `before`."""
    return {path: total - before[path] for path, total in bytes_by_path(owner).items()}


def in_words(moved: dict[str, int]) -> str:
    """The paths that carried at least one per cent of the bytes, in words."""
    total = sum(moved.values())
    names = [PATHS[path] for path, nbytes in moved.items() if nbytes * 100 >= total > 0]
    return " + ".join(names) or "none"
