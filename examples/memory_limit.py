"""A limit of memory for one program: a control group where that is allowed, else RLIMIT_DATA.

A control group counts every page that the program touches; beyond the limit the kernel kills it.
RLIMIT_DATA counts what it has mapped, used or not; an allocation beyond it fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
# What a control group is called here, its files for the limit (the second one with swap), its peak.
VERSIONS = {
    "cgroup v2": ("memory.max", "memory.swap.max", "memory.peak"),
    "cgroup v1": (
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
        "memory.max_usage_in_bytes",
    ),
}


@dataclass(frozen=True)
class MemoryLimit:
    """A place to run one program in."""

    how: str  # what limits it, for people
    command: list[str]  # goes before the program
    peak: Callable[[], int | None]  # bytes of the group at most; None where there is no group
    end: Callable[[], None]


def limited(limit: int | None, groups: bool = True) -> MemoryLimit:
    """A limit in bytes, or only a group that counts (None). ``groups=False``: no control group."""
    for version, folder in _own_groups() if groups else []:
        try:
            return _group(version, folder / f"deepnvme-{os.getpid()}", limit)
        except OSError:
            continue  # it is someone else's, or does not control memory
    command = [] if limit is None else ["sh", "-c", 'ulimit -d "$0" && exec "$@"', f"{limit >> 10}"]
    return MemoryLimit("RLIMIT_DATA", command, lambda: None, lambda: None)


def _own_groups() -> list[tuple[str, Path]]:
    """Where this process might make a group. In v2 a group with processes has no limited groups in
    it, so that it has to be beside the own one.
    """
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if not controllers:
            found += [("cgroup v2", MOUNT / inside / ".."), ("cgroup v2", MOUNT / inside)]
        elif "memory" in controllers.split(","):
            found.append(("cgroup v1", MOUNT / "memory" / inside))
    return found


def _group(version: str, folder: Path, limit: int | None) -> MemoryLimit:
    """OSError where it cannot be made."""
    maximum, with_swap, peak = (folder / name for name in VERSIONS[version])
    folder.mkdir()
    try:
        peak.read_text()
        if limit is not None:
            maximum.write_text(str(limit))
            if with_swap.exists():
                with_swap.write_text("0" if version == "cgroup v2" else str(limit))
    except OSError:
        folder.rmdir()
        raise
    # The group has this process only if it is allowed to join.
    join = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(folder / "cgroup.procs")]
    how = f"{version}, {maximum.name}"
    return MemoryLimit(how, join, lambda: int(peak.read_text()), folder.rmdir)
