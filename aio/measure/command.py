"""What command lines share: kinds of arguments, errors of one line, and how signals end them."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from aio.measure.sizes import parse_size


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
