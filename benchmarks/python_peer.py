"""Plain Python as a contestant: open, preadv or pwritev, close; one call in flight."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import torch

from aio.measure.harness import BenchError, Contestant, Sample, stopwatch

from .context import Context


def large(path: Path, tensor: torch.Tensor, reading: bool, context: Context) -> Contestant:
    """Block after block between one file and page-aligned memory, with O_DIRECT."""
    memory = tensor.numpy().data
    flags = (os.O_RDONLY if reading else os.O_WRONLY | os.O_CREAT) | os.O_DIRECT
    block = context.block_size

    def run() -> Sample:
        with stopwatch() as watch:
            descriptor = os.open(path, flags, 0o600)
            try:
                move = os.preadv if reading else os.pwritev
                for start in range(0, len(memory), block):
                    wanted = memory[start : start + block]
                    done = move(descriptor, [wanted], start)
                    if done != len(wanted):
                        raise BenchError(f"Python moved {done} of {len(wanted)} bytes at {start}")
            finally:
                os.close(descriptor)
        return Sample(
            watch.seconds, len(memory), watch.cpu_seconds, 1, f"{context.fio_mode}, depth 1"
        )

    return Contestant("Python preadv" if reading else "Python pwritev", run)


def buffered(path: Path, tensor: torch.Tensor, reading: bool) -> Contestant:
    """open, then write or readinto, as Python does it without further thought: the page cache."""
    memory = tensor.numpy().data

    def run() -> Sample:
        with stopwatch() as watch, open(path, "rb" if reading else "wb", buffering=0) as file:
            done = 0
            while done < len(memory):  # a call moves 2 GiB at most
                count = file.readinto(memory[done:]) if reading else file.write(memory[done:])
                if not count:
                    raise BenchError(f"Python moved {done} of {len(memory)} bytes")
                done += count
        return Sample(watch.seconds, done, watch.cpu_seconds, 1, "page cache")

    return Contestant("Python readinto" if reading else "Python write", run)


def small_read(path: Path, nbytes: int, offset: int, direct: bool) -> Callable[[], None]:
    """open + preadv + close of `nbytes`, with O_DIRECT into a page or through the page cache."""
    buffer = mmap.mmap(-1, nbytes)
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)

    def call() -> None:
        descriptor = os.open(path, flags)
        done = os.preadv(descriptor, [buffer], offset)
        os.close(descriptor)
        if done != nbytes:
            raise BenchError(f"Python read {done} of {nbytes} bytes")

    return call
