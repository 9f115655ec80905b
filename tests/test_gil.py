"""Every call that waits for I/O or for memory lets other Python threads run (C-05)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import _deepnvme
import aio
from support.gil import expect_gil_released

NBYTES = 4 << 20


class Scene:
    """A handle, a file and a buffer, for one call of each kind."""

    def __init__(self, backend: str, path: Path) -> None:
        self.backend = backend
        self.path = path
        self.buffer = torch.ones(NBYTES, dtype=torch.uint8)
        self.handle = aio.aio_handle(backend=backend)
        self.handle.sync_pwrite(self.buffer, path)
        self.future: Any = None
        self.kept: Any = None

    def prepare(self, call: str) -> None:
        if call == "wait":
            self.handle.async_pread(self.buffer, self.path)
        elif call == "close":
            self.handle.close()
            self.handle = aio.aio_handle(backend=self.backend)
            self.handle.async_pwrite(self.buffer, self.path)
        elif call in ("result", "exception"):
            self.future = self.handle.submit_pread(self.buffer, self.path)
        elif call == "new_cpu_locked_tensor":
            self.kept = None
            _deepnvme.pin.empty_cache()
        elif call == "fsync":
            self.path.write_bytes(bytes(NBYTES))

    def call(self, call: str) -> None:
        many = [(self.buffer, self.path)]
        if call in ("wait", "close"):
            getattr(self.handle, call)()
        elif call in ("result", "exception"):
            getattr(self.future, call)()
        elif call == "new_cpu_locked_tensor":
            self.kept = self.handle.new_cpu_locked_tensor(8 * NBYTES, self.buffer)
        elif call == "fsync":
            self.handle.fsync(self.path)
        elif call.endswith("many"):
            getattr(self.handle, call)(many)
        elif call.startswith("sync"):
            getattr(self.handle, call)(self.buffer, self.path)
        elif call.startswith("p"):
            getattr(self.handle, call)(self.buffer, self.path, False, False)
        else:
            getattr(self.handle, call)(self.buffer, self.path, False)


@pytest.mark.parametrize(
    "call",
    [
        *("read", "write", "pread", "pwrite", "sync_pread", "sync_pwrite"),
        *("pread_many", "pwrite_many", "wait", "close", "result", "exception"),
        *("new_cpu_locked_tensor", "fsync"),
    ],
)
def test_other_threads_run_meanwhile(disk: Path, backend: str, call: str) -> None:
    scene = Scene(backend, disk / "file")
    expect_gil_released(
        call=_bound(scene.call, call),
        prepare=_bound(scene.prepare, call),
    )
    scene.handle.close()


def _bound(method: Callable[[str], None], call: str) -> Callable[[], None]:
    return lambda: method(call)
