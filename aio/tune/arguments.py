"""The command line of ds_nvme_tune, under DeepSpeed's names, and what of it this machine can do."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from aio.measure.command import (
    Parser,
    UsageError,
    accelerator_for_gpu,
    check_folder,
    check_gds,
    check_output,
    positive,
    size,
)
from aio.profiles import profile_path
from aio.tune.workload import DIRECTIONS

LONGEST = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Settings:
    """What a run does; sizes in bytes, times in seconds."""

    directories: tuple[str, ...]
    directions: tuple[str, ...]
    sweep_config: str | None
    io_size: int
    loops: int
    seconds: float
    devices: tuple[torch.device, ...] | None  # one for each directory; None: host memory
    log_dir: Path | None
    report: str | None
    json: str | None
    profile: Path | None  # where to save it
    verbose: bool


def parser() -> Parser:
    """DeepSpeed's flags, and --time, --report, --json, --profile and --no_profile."""
    made = Parser(
        prog="ds_nvme_tune",
        description="Finds the options with which aio_handle is fastest on a drive, prints them as "
        "DeepSpeed's configuration takes them, and saves them as the drive's profile. Its files "
        "have no name and go with it. Needs no root.",
    )
    add = made.add_argument
    add(
        "--nvme_dir", nargs="+", action="extend", default=[], required=True, metavar="DIR",
        help="a writable directory on the drive; several are used at the same time, by one handle",
    )  # fmt: skip
    add("--sweep_config", metavar="FILE", help="JSON: the values to try of each option")
    add("--no_read", action="store_true", help="do not measure reading")
    add("--no_write", action="store_true", help="do not measure writing")
    add("--io_size", type=size, default="400M", help="bytes of each file, at most moved by a run")
    add("--gpu", action="store_true", help="tensors are on accelerators, one for each directory")
    add("--gds", action="store_true", help="not here: see --gpu")
    add(
        "--flush_page_cache", action="store_true",
        help="accepted: the page cache of the files is dropped before each run anyway",
    )  # fmt: skip
    add("--log_dir", type=Path, metavar="DIR", help="keep a log of each combination there")
    add("--loops", type=positive, default=1, help="times that a run moves the files (1)")
    add("--verbose", action="store_true", help="a line on standard error for each run")
    add("--time", type=_seconds, default=90.0, help="seconds in all (90)")
    add("--report", metavar="FILE", help="write a page with diagrams there; it needs no network")
    add("--json", metavar="FILE", help="write every run there too; - is standard output")
    where = made.add_mutually_exclusive_group()
    where.add_argument(
        "--profile", type=Path, metavar="FILE", help="save the profile there, not for the drive"
    )
    where.add_argument("--no_profile", action="store_true", help="save no profile")
    return made


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Settings that this machine can carry out.

    Raises UsageError, OSError and ProfileError, or exits as argparse does.
    """
    given = parser().parse_args(arguments)
    excluded = {"read": given.no_read, "write": given.no_write}
    directions = tuple(direction for direction in DIRECTIONS if not excluded[direction])
    if not directions:
        raise UsageError("--no_read and --no_write leave nothing to measure: leave one out")
    for directory in given.nvme_dir:
        check_folder(Path(directory))
    check_output("--report", given.report)
    check_output("--json", given.json)
    if given.report == "-":
        raise UsageError("--report -: give a file")
    return Settings(
        directories=tuple(given.nvme_dir),
        directions=directions,
        sweep_config=given.sweep_config,
        io_size=given.io_size,
        loops=given.loops,
        seconds=given.time,
        devices=_devices(given, len(given.nvme_dir)),
        log_dir=None if given.log_dir is None else _made_folder("--log_dir", given.log_dir),
        report=given.report,
        json=given.json,
        profile=_profile(given),
        verbose=given.verbose,
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds up to {LONGEST:.0f}")
    return seconds


def _devices(given: argparse.Namespace, count: int) -> tuple[torch.device, ...] | None:
    check_gds("--gds", given.gds)
    if not given.gpu:
        return None
    name, devices = accelerator_for_gpu()
    return tuple(torch.device(name, index % devices) for index in range(count))


def _profile(given: argparse.Namespace) -> Path | None:
    """Where the profile goes; its folder is made now, not after minutes of measuring."""
    if given.no_profile:
        return None
    path: Path = given.profile or profile_path(given.nvme_dir)
    if path.is_dir():
        raise UsageError(f"--profile {path} is a folder: give a file")
    _made_folder("the profile's folder", path.parent)
    return path


def _made_folder(what: str, path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be made: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"{what} {path} cannot be written to: give another one")
    return path
