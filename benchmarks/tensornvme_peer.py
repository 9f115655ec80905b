"""TensorNVMe as a contestant: tensors to and from its own file, through the page cache.

Its Offloader forgets a tensor when it is read, so every read is of a file written just before,
untimed. It reports no failed or short transfer, so the bytes are compared after each read.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from aio.measure.files import drop_cache
from aio.measure.harness import Contestant, Sample, stopwatch

from .conditions import PeerError
from .layout import spots_of

NAME = "TensorNVMe"


def missing() -> str:
    """Why TensorNVMe cannot take part; empty where it can."""
    try:
        from tensornvme._C import probe_backend
    except ImportError as error:
        return f"not installed ({error})"
    return "" if probe_backend("uring") else "its io_uring backend does not work here"


class TensorNvme:
    """The offloader of one file, which goes with it; `close` before the file's folder does."""

    def __init__(self, path: Path, tensors: Sequence[torch.Tensor], depth: int) -> None:
        self._path = path
        self._tensors = tensors
        self._depth = depth
        self._offloader: Any = None

    def contestant(self, reading: bool) -> Contestant:
        """All tensors to a new file, or from it."""
        return Contestant(NAME, functools.partial(self._run, reading))

    def close(self) -> None:
        """Delete the file."""
        self._offloader = None

    def _run(self, reading: bool) -> Sample:
        self.close()
        if reading:
            self._write()
            drop_cache(self._path)
            wanted = [spots_of(tensor) for tensor in self._tensors]
            for tensor in self._tensors:
                tensor.view(torch.uint8).bitwise_not_()
        with stopwatch() as watch:
            if reading:
                self._read()
            else:
                self._write()
        nbytes = sum(tensor.nbytes for tensor in self._tensors)
        if reading:
            found = [spots_of(tensor) for tensor in self._tensors]
            if not all(map(torch.equal, found, wanted)):
                raise PeerError(NAME, "it read other bytes than it wrote, and did not say so")
        elif self._path.stat().st_size != nbytes:
            size = self._path.stat().st_size
            raise PeerError(NAME, f"it wrote {size} of {nbytes} bytes, and did not say so")
        return Sample(watch.seconds, nbytes, watch.cpu_seconds, len(self._tensors), "page cache")

    def _write(self) -> None:
        from tensornvme._C import Offloader

        self._offloader = Offloader(str(self._path), self._depth, "uring")
        for number, tensor in enumerate(self._tensors):
            self._offloader.async_write(tensor, str(number), None)
        self._offloader.sync_write_events()

    def _read(self) -> None:
        for number, tensor in enumerate(self._tensors):
            self._offloader.async_read(tensor, str(number), None)
        self._offloader.sync_read_events()
