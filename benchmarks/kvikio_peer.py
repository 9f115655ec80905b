"""KvikIO's POSIX path as a contestant: host memory, a pool of threads, O_DIRECT where it can."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from aio.measure.harness import Contestant, Sample, stopwatch

from .conditions import PeerError

NAME = "KvikIO POSIX"
THREADS = 16
TASK_BYTES = 4 << 20


def missing(folder: Path) -> str:
    """Why KvikIO cannot take part; empty where it can. Moves a page in `folder` to find out."""
    try:
        kvikio = _configured()
    except ImportError as error:
        return f"not installed ({error})"
    page = torch.zeros(4096, dtype=torch.uint8).numpy()
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        try:
            with kvikio.CuFile(file.name, "w") as target:
                target.pwrite(page).get()
        except RuntimeError as error:
            words = str(error).splitlines()[0]
            return f"{kvikio.__version__} moves no host memory here: {words}"
    return ""


def _configured() -> Any:
    """The module, set to its POSIX path."""
    os.environ["KVIKIO_COMPAT_MODE"] = "ON"
    import kvikio
    import kvikio.defaults

    kvikio.defaults.set(
        {
            "compat_mode": kvikio.CompatMode.ON,
            "num_threads": THREADS,
            "task_size": TASK_BYTES,
            "auto_direct_io_read": True,
            "auto_direct_io_write": True,
        }
    )
    return kvikio


def large(path: Path, tensor: torch.Tensor, reading: bool) -> Contestant:
    """One tensor to or from one file; writing makes the file anew."""
    kvikio = _configured()
    memory = tensor.numpy()

    def run() -> Sample:
        with stopwatch() as watch, kvikio.CuFile(path, "r" if reading else "w") as file:
            done = (file.pread if reading else file.pwrite)(memory).get()
        if done != tensor.nbytes:
            raise PeerError(NAME, f"it moved {done} of {tensor.nbytes} bytes")
        how = f"direct where aligned, {THREADS} threads"
        return Sample(watch.seconds, done, watch.cpu_seconds, 1, how)

    return Contestant(NAME, run)
