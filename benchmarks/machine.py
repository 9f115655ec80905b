"""What was measured on: recorded beside every set of figures, which mean nothing without it."""

from __future__ import annotations

import os
import platform
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import aio

from . import fio
from .layout import file_system


def describe() -> dict[str, Any]:
    """The machine, the software, the moment and the command line."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
        "kernel": platform.release(),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "aio": aio.__version__,
        "backends": [str(backend) for backend in aio.available_backends()],
        "fio": fio.version(),
    }


def describe_folder(folder: Path) -> dict[str, Any]:
    """The file system of a directory, and the block device under it where there is one."""
    device = os.stat(folder).st_dev
    result: dict[str, Any] = {"directory": str(folder), "file_system": file_system(folder)}
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not block.exists():
        return result
    block = block.resolve()
    # A partition has no queue of its own.
    disk = block if (block / "queue").exists() else block.parent
    result["device"] = block.name
    for name in ("logical_block_size", "max_sectors_kb", "nr_requests", "scheduler", "rotational"):
        result[name] = _read(disk / "queue" / name)
    model = _read(disk / "device" / "model")
    if model:
        result["model"] = model
    return result


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # not every device has every attribute


def _field(path: str, name: str) -> str:
    for line in _read(Path(path)).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return platform.machine()
