"""What this machine offers: kernel, engines, page-locked memory, file systems and their drives."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import aio
from _deepnvme import io as _io
from _deepnvme import pin as _pin
from aio.drives import block_device_of, mount_of, whole_drive
from aio.measure.sizes import format_size

QUEUE_LIMITS = (
    "logical_block_size",
    "physical_block_size",
    "dma_alignment",
    "max_sectors_kb",
    "max_segments",
    "nr_requests",
    "scheduler",
)


def machine_info(directories: list[str]) -> dict[str, Any]:
    """Everything that print_info shows, as plain values; sizes in bytes."""
    locked, limit = _pin.locked_memory()
    return {
        "versions": {
            "deepnvme": aio.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "kernel": platform.release(),
        },
        "engines": _io.probe(),
        "memory": {
            "page_locked": locked,
            "memlock_limit": limit,
            "pinned": aio.pinned_stats(),
            "transparent_huge_pages": _read_choice("/sys/kernel/mm/transparent_hugepage/enabled"),
        },
        "kernel_limits": {
            "fs.aio-nr": _read_text("/proc/sys/fs/aio-nr"),
            "fs.aio-max-nr": _read_text("/proc/sys/fs/aio-max-nr"),
            "kernel.io_uring_disabled": _read_text("/proc/sys/kernel/io_uring_disabled"),
        },
        "directories": [directory_info(directory) for directory in directories],
    }


def directory_info(directory: str) -> dict[str, Any]:
    """How requests on files of a directory travel, and the limits of the drive below.

    ``error`` says why not.
    """
    info: dict[str, Any] = {"directory": os.path.abspath(directory)}
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".deepnvme-info-") as file:
            info.update(_io.file_alignment(file.name))
        space = os.statvfs(directory)
    except OSError as error:
        info["error"] = str(error)
        return info
    info["free"] = space.f_bavail * space.f_frsize
    info["file_system"], info["source"] = mount_of(directory)
    info["queue"] = _queue_of(directory)
    return info


def print_info(directories: list[str], as_json: bool) -> None:
    """Print machine_info to standard output, as tables or as JSON."""
    info = machine_info(directories)
    console = Console(highlight=False, markup=False)  # a directory may be named "[red]"
    if as_json:
        console.print_json(json.dumps(info))
        return
    console.print("  ".join(f"{name} {version}" for name, version in info["versions"].items()))
    console.print(_engine_table(info["engines"]))
    console.print(_memory_table(info["memory"], info["kernel_limits"]))
    for directory in info["directories"]:
        console.print(_directory_table(directory))


def _engine_table(engines: list[dict[str, Any]]) -> Table:
    table = Table("engine", "state", "reason", title="Engines, best first", title_justify="left")
    for engine in engines:
        state = (
            "works" if engine["usable"] else "built, unusable" if engine["built"] else "not built"
        )
        table.add_row(engine["name"], state, engine["reason"])
    return table


def _memory_table(memory: dict[str, Any], limits: dict[str, Any]) -> Table:
    table = Table(
        "what", "value", title="Page-locked memory and kernel limits", title_justify="left"
    )
    limit = memory["memlock_limit"]
    table.add_row("locked by this process", format_size(memory["page_locked"]))
    table.add_row("memlock limit", "none" if limit is None else format_size(limit))
    table.add_row("transparent huge pages", memory["transparent_huge_pages"])
    for name, value in limits.items():
        table.add_row(name, value)
    return table


def _directory_table(info: dict[str, Any]) -> Table:
    table = Table("what", "value", title=info["directory"], title_justify="left")
    if "error" in info:
        table.add_row("error", info["error"])
        return table
    table.add_row("file system", f"{info['file_system']} on {info['source']}")
    table.add_row("free", format_size(info["free"]))
    if info["direct"]:
        table.add_row("path", "direct (O_DIRECT)")
        table.add_row("memory alignment", format_size(info["memory"]))
        table.add_row("offset alignment", format_size(info["granule"]))
    else:
        why = "the file system refuses O_DIRECT" if info["refused"] else "memory or no direct I/O"
        table.add_row("path", f"buffered ({why})")
    for name, value in info["queue"].items():
        table.add_row(name, value)
    return table


def _read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        return f"not readable ({error.strerror})"


def _read_choice(path: str) -> str:
    """The chosen one of "always [madvise] never"."""
    text = _read_text(path)
    return text.partition("[")[2].partition("]")[0] or text


def _queue_of(directory: str) -> dict[str, str]:
    """Limits of the block device, of the whole drive for a partition; empty where there is none."""
    block = block_device_of(directory)
    if block is None:
        return {}
    queue = whole_drive(block) / "queue"
    return {name: _read_text(queue / name) for name in QUEUE_LIMITS if (queue / name).exists()}
