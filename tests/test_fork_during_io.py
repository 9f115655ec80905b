"""Forking while direct I/O is in flight corrupts nothing (D-04)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import torch

from support.buffers import locked, pattern, raw
from support.forks import expect_child_ok, fork_and
from support.threads import meanwhile

NBYTES = 1 << 20
FORKS = 30


def test_reads_and_writes(directory: Path, backend: str, make_handle: Any) -> None:
    data = pattern(NBYTES)
    (directory / "file").write_bytes(data)
    handle = make_handle(backend, block_size=65536)

    def work() -> None:
        for target in (torch.zeros(NBYTES, dtype=torch.uint8), locked(handle, NBYTES)):
            target.zero_()
            handle.sync_pread(target, directory / "file")
            assert raw(target) == data
            handle.sync_pwrite(target, directory / "copy")
        assert (directory / "copy").read_bytes() == data

    with meanwhile(work):
        for index in range(FORKS):
            if index % 6 == 0:
                subprocess.run(["true"], check=True, timeout=60)
            else:
                # The child writes to what it has inherited: its own copy, never the parent's.
                expect_child_ok(fork_and(lambda: None))
