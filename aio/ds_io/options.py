"""The command line of ds_io, under DeepSpeed's names, and what of it this machine can do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aio.backends import BACKENDS, available_backends, backend_name
from aio.measure import fio
from aio.measure.command import (
    Parser,
    UsageError,
    accelerator_for_gpu,
    check_backend,
    check_folder,
    check_gds,
    check_output,
    number,
    positive,
    size,
)

HANDLE, BASIC, TORCH, FAST = "aio_handle", "aio_basic", "torch_io", "torch_fastio"
ENGINES = (HANDLE, BASIC, TORCH, FAST)


@dataclass(frozen=True)
class Options:
    """What a run does; sizes in bytes. One folder and one device number for each process."""

    folders: tuple[Path, ...]
    devices: tuple[int, ...]
    io_size: int
    fast_io_size: int
    reading: bool
    block_size: int
    queue_depth: int
    single_submit: bool
    sequential_requests: bool
    validate: bool
    engine: str
    backend: str
    loops: int
    warmup_loops: int
    include_warmup_time: bool
    io_parallel: int
    gpu: bool
    slow_bounce_buffer: bool
    torch_legacy_save: bool
    use_accelerator_pin_memory: bool
    different_file_each_iteration: bool
    fsync: bool
    fio: bool
    json: str | None

    @property
    def direction(self) -> str:
        return "read" if self.reading else "write"

    @property
    def total_loops(self) -> int:
        return self.warmup_loops + self.loops

    @property
    def serializes(self) -> bool:
        """Whether torch.save or torch.load does the work; each write makes a new file then."""
        return self.engine in (TORCH, FAST)

    @property
    def fresh_files(self) -> bool:
        """Whether every loop writes a file that was not there, rather than over the last one's."""
        return not self.reading and (self.serializes or self.different_file_each_iteration)

    @property
    def files(self) -> int:
        """Files of each process, at most."""
        return self.total_loops if self.different_file_each_iteration else 1


def parser() -> Parser:
    """DeepSpeed's flags, and --backend, --fsync, --fio and --json."""
    made = Parser(
        prog="ds_io",
        description="Measures how fast a tensor moves between memory and files of a folder. "
        "Its files lie in a folder of their own there and are deleted afterwards.",
    )
    add = made.add_argument
    where = made.add_mutually_exclusive_group(required=True)
    where.add_argument("--folder", type=Path, help="where the files go")
    where.add_argument(
        "--folder_to_device_mapping", nargs="+", action="extend", default=[], metavar="DIR:DEVICE",
        help="one process for each pair, which uses that folder and, with --gpu, that device",
    )  # fmt: skip
    add("--io_size", type=size, required=True, help="bytes of the tensor, such as 400M or 1G")
    add("--fast_io_size", type=size, default="64M", help="bytes of torch_fastio's pinned buffer")
    add("--read", action="store_true", help="read (default: write)")
    add("--multi_process", type=positive, default=1, help="processes at the same time (1)")
    add("--block_size", type=size, default="1M", help="bytes of one transfer (1M)")
    add("--queue_depth", type=positive, default=32, help="transfers in flight, per worker (32)")
    add("--single_submit", action="store_true", help="one system call for each transfer")
    add("--sequential_requests", action="store_true", help="start batch after batch of transfers")
    add("--validate", action="store_true", help="compare every byte by a read of its own, untimed")
    add(
        "--engine", default=HANDLE, metavar="ENGINE",
        help="aio_handle (asynchronous requests, the default), aio_basic (one synchronous call "
        "after the other), torch_io (torch.save, torch.load), torch_fastio (torch.save through a "
        "handle)",
    )  # fmt: skip
    add("--backend", default=None, metavar="BACKEND", help=f"of the handle: {', '.join(BACKENDS)}")
    add("--loops", type=positive, default=3, help="repetitions that count (3)")
    add("--warmup_loops", type=number, default=1, help="repetitions before them (1)")
    add("--include_warmup_time", action="store_true", help="count the warm-up loops too")
    add("--io_parallel", type=positive, default=1, help="workers of each handle (1)")
    add("--gpu", action="store_true", help="the tensor is on the accelerator")
    add("--use_gds", action="store_true", help="not here: see --gpu")
    add(
        "--slow_bounce_buffer", action="store_true",
        help="with --gpu: page-lock a host copy of the tensor inside the time of each loop",
    )  # fmt: skip
    add("--torch_legacy_save", action="store_true", help="torch.save in its old format")
    add(
        "--use_accelerator_pin_memory", action="store_true",
        help="page-lock by the accelerator's pin_memory instead of the handle's",
    )  # fmt: skip
    add("--different_file_each_iteration", action="store_true", help="a file for every loop")
    add("--fsync", action="store_true", help="end each write with fsync, inside its time")
    add("--fio", action="store_true", help="do the same through fio, in turn, and compare")
    add("--json", metavar="FILE", help="write every sample there too; - is standard output")
    return made


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Options that this machine can carry out. Raises UsageError, or exits as argparse does."""
    given = parser().parse_args(arguments)
    if given.engine not in ENGINES:
        raise UsageError(f"--engine {given.engine}: there are {', '.join(ENGINES)}")
    folders, devices = _folders(given)
    for folder in dict.fromkeys(folders):
        check_folder(folder)
    _check_device(given, devices)
    if given.engine == FAST and given.read:
        raise UsageError("--engine torch_fastio writes only: use torch_io with --read")
    backend = _backend(given)
    _check_fio(given)
    check_output("--json", given.json)
    taken = {name: value for name, value in vars(given).items() if name in Options.__annotations__}
    changed = {"folders": folders, "devices": devices, "reading": given.read, "backend": backend}
    return Options(**{**taken, **changed})


def _folders(given: argparse.Namespace) -> tuple[tuple[Path, ...], tuple[int, ...]]:
    """The folder and the device of each process."""
    if given.folder is not None:
        count = given.multi_process
        return (given.folder,) * count, tuple(range(count)) if given.gpu else (0,) * count
    folders, devices = [], []
    for pair in given.folder_to_device_mapping:
        folder, colon, device = pair.rpartition(":")
        if not (colon and folder and device.isascii() and device.isdigit() and len(device) < 10):
            raise UsageError(f"--folder_to_device_mapping {pair}: give FOLDER:NUMBER")
        folders.append(Path(folder))
        devices.append(int(device))
    if given.multi_process not in (1, len(folders)):
        raise UsageError(
            f"--multi_process {given.multi_process}, but --folder_to_device_mapping has "
            f"{len(folders)} pairs, one for each process: leave --multi_process out"
        )
    return tuple(folders), tuple(devices)


def _check_device(given: argparse.Namespace, devices: Sequence[int]) -> None:
    check_gds("--use_gds", given.use_gds)
    if not given.gpu:
        return
    name, count = accelerator_for_gpu()
    if wrong := [device for device in devices if device >= count]:
        raise UsageError(f"--gpu: there is no {name} device {wrong[0]}; there are {count}, from 0")


def _backend(given: argparse.Namespace) -> str:
    """The engine of the handles, by name."""
    try:
        name = backend_name(given.backend)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if given.engine == TORCH:
        return "none"
    usable = available_backends()
    if name == "auto":
        return usable[0]
    check_backend(name, usable)
    return name


def _check_fio(given: argparse.Namespace) -> None:
    if not given.fio:
        return
    if fio.version() is None:
        raise UsageError("--fio: fio is not installed: apt-get install fio, or leave out --fio")
    if given.io_size % given.block_size:
        raise UsageError(
            f"--fio: fio moves whole blocks, and --io_size {given.io_size} is no multiple of "
            f"--block_size {given.block_size}"
        )


def as_json(options: Options) -> dict[str, Any]:
    """Options as plain values."""
    values = {name: getattr(options, name) for name in Options.__annotations__}
    return {**values, "folders": [str(folder) for folder in options.folders]}
