"""What command lines share: kinds of arguments, errors of one line, and how signals end them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch

from aio.measure.sizes import parse_size
from pinned_manager import get_accelerator


class UsageError(ValueError):
    """What was asked for cannot be done here; one line that says why and what to do."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def size(text: str) -> int:
    """Bytes of "400M" and the like, as an argument."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def number(text: str) -> int:
    """A whole number from 0, as an argument."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 999999999")
    return int(text)


def positive(text: str) -> int:
    """A whole number from 1, as an argument."""
    if (value := number(text)) == 0:
        raise argparse.ArgumentTypeError("0 is too few: give at least 1")
    return value


def check_folder(folder: Path) -> None:
    """Raise UsageError for what is no folder in which files can be made."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {what}: give a folder on the drive to measure")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} cannot be written to: give a folder where you may make files")


def check_output(flag: str, path: str | None) -> None:
    """Raise UsageError for a file that cannot be written at the end; "-" is standard output."""
    if path is None or path == "-":
        return
    folder = Path(path).absolute().parent
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{flag} {path}: cannot be written; give a file in a folder that exists")


def check_gds(flag: str, given: bool) -> None:
    """Raise UsageError for DeepSpeed's flag that asks for GPUDirect Storage."""
    if given:
        raise UsageError(
            f"{flag}: there is no GPUDirect Storage here; --gpu alone moves device tensors through "
            "page-locked blocks"
        )


def accelerator_for_gpu() -> tuple[str, int]:
    """torch's name of the accelerator that --gpu means, and how many devices there are.

    Raises UsageError where there is none.
    """
    name = get_accelerator().name
    if name == "cpu":
        raise UsageError("--gpu: torch finds no accelerator on this machine; leave out --gpu")
    return name, getattr(torch, name).device_count()


def check_backend(name: str, usable: Sequence[str]) -> None:
    """Raise UsageError for an engine that is none of those that can run here."""
    if name not in usable:
        raise UsageError(
            f"backend {name} cannot run here, only {', '.join(usable)} can; "
            "`deepnvme info` shows the reason"
        )


def exit_status(
    program: str, run: Callable[[], None], failures: tuple[type[Exception], ...], interrupted: str
) -> int:
    """Run a command: 0 when it is done, 1 for one of ``failures``, 2 for a UsageError, 130 for
    Ctrl-C, ``interrupted`` being what has become of its work. Failures are told in one line.
    """
    try:
        run()
        return 0
    except UsageError as error:
        status, message = 2, one_line(error)
    except failures as error:
        status, message = 1, one_line(error)
    except KeyboardInterrupt:
        status, message = 130, f"interrupted; {interrupted}"
    sys.stderr.write(f"{program}: error: {message}\n")
    return status


def one_line(error: BaseException) -> str:
    """What went wrong, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the run as Ctrl-C does, so that its files are deleted."""
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
