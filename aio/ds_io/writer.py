"""A file for torch.save whose bytes go to the drive through a handle."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aio.futures import IOFuture


class HandleWriter(io.RawIOBase):
    """A new file, written from its start through the two halves of a page-locked uint8 tensor.

    One half is filled while the other is on its way. ``flush`` and ``close`` return when everything
    is written. A failure raises AioError from the call that meets it.
    """

    def __init__(self, path: Path, handle: Any, buffer: torch.Tensor) -> None:
        if len(buffer) < 2:
            raise ValueError(f"the buffer has {len(buffer)} bytes, but must have at least 2")
        super().__init__()
        self._path = str(path)
        self._handle = handle
        half = len(buffer) // 2
        self._halves = (buffer[:half], buffer[half : 2 * half])
        self._flying: list[IOFuture | None] = [None, None]
        self._current = 0
        self._filled = 0  # bytes of the current half
        self._offset = 0  # in the file, of the current half
        path.open("wb").close()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        """Take all of ``data``, an object with the buffer protocol."""
        source = memoryview(data).cast("B")
        done = 0
        while done < len(source):
            half = self._halves[self._current]
            if self._filled == 0:
                self._settle(self._current)
            count = min(len(half) - self._filled, len(source) - done)
            target = half[self._filled : self._filled + count]
            target.numpy()[:] = np.frombuffer(source[done : done + count], dtype=np.uint8)
            self._filled += count
            done += count
            if self._filled == len(half):
                self._send()
        return len(source)

    def flush(self) -> None:
        """Wait until everything is written."""
        super().flush()
        if self._filled:
            self._send()
        for number in range(2):
            self._settle(number)

    def _send(self) -> None:
        part = self._halves[self._current][: self._filled]
        self._flying[self._current] = self._handle.submit_pwrite(part, self._path, self._offset)
        self._offset += self._filled
        self._filled = 0
        self._current = 1 - self._current

    def _settle(self, number: int) -> None:
        """Wait for what is under way from one half."""
        future, self._flying[number] = self._flying[number], None
        if future is not None:
            future.result()
