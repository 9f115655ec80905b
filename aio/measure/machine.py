"""What was measured on: recorded beside every set of figures, which mean nothing without it."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import aio
from aio.drives import block_device_of, mount_of, read_text, whole_drive
from aio.measure import fio


def describe(program: str) -> dict[str, Any]:
    """The machine, the software, the moment and the command line (`program` and its arguments)."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([*program.split(), *sys.argv[1:]]),
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
    result: dict[str, Any] = {"directory": str(folder), "file_system": mount_of(folder)[0]}
    block = block_device_of(folder)
    if block is None:
        return result
    drive = whole_drive(block)
    result["device"] = block.name
    for name in ("logical_block_size", "max_sectors_kb", "nr_requests", "scheduler", "rotational"):
        result[name] = read_text(drive / "queue" / name)
    model = read_text(drive / "device" / "model")
    if model:
        result["model"] = model
    return result


def _field(path: str, name: str) -> str:
    for line in read_text(Path(path)).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return platform.machine()
