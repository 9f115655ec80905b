"""Whether there is room, on drives and in memory: asked before anything is written."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from aio.drives import read_text
from aio.measure.harness import BenchError
from aio.measure.sizes import format_size

_SPARE = 32 << 20  # bytes of a drive for what a file system needs besides the data


def check_disk(wanted: Iterable[tuple[str | Path, int]]) -> None:
    """Raise BenchError where a file system has too little room for (folder, bytes) in all.

    OSError for a folder that is not there.
    """
    needed: Counter[int] = Counter()
    for folder, nbytes in wanted:
        device = os.stat(folder).st_dev
        needed[device] += nbytes
        room = shutil.disk_usage(folder)
        if room.total and room.free < needed[device] + _SPARE:  # ramfs has no total, and no limit
            raise BenchError(
                f"{folder}: {format_size(room.free)} free, but "
                f"{format_size(needed[device] + _SPARE)} needed: make room, or give a smaller "
                "--io_size"
            )


def check_memory(needed: int) -> None:
    """Raise BenchError where fewer bytes of memory are left."""
    available = available_memory()
    if available is not None and needed > available:
        raise BenchError(
            f"{format_size(needed)} of memory needed, {format_size(available)} available: "
            "give a smaller --io_size, or use fewer tensors at a time"
        )


def available_memory() -> int | None:
    """Bytes, as the kernel estimates them (proc_meminfo(5)); None where it does not."""
    for line in read_text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None
