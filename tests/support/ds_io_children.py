"""Processes of a ds_io team without torch, so that they start within a second."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def fails_at(
    pipe: Connection, barrier: Any, failing: int, rank: int, folder: Path
) -> None:  # as worker._child, with a number in place of the options
    """Process `failing` cannot begin, and the others wait for it."""
    if rank == failing:
        pipe.send(f"{folder}: No such file or directory")
    else:
        pipe.send(None)
    barrier.wait()
