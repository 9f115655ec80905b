"""Forking while direct I/O is in flight corrupts nothing (D-04)."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import torch

import aio
from support.buffers import locked, pattern, raw
from support.forks import expect_child_ok, fork_and

NBYTES = 1 << 20
FORKS = 30


def test_reads_and_writes(directory: Path, backend: str) -> None:
    data = pattern(NBYTES)
    (directory / "file").write_bytes(data)
    stop = threading.Event()
    failures: list[BaseException] = []
    rounds = 0

    def work() -> None:
        nonlocal rounds
        try:
            with aio.aio_handle(backend=backend, block_size=65536) as handle:
                while not stop.is_set():
                    for target in (torch.zeros(NBYTES, dtype=torch.uint8), locked(handle, NBYTES)):
                        target.zero_()
                        handle.sync_pread(target, directory / "file")
                        assert raw(target) == data
                        handle.sync_pwrite(target, directory / "copy")
                    assert (directory / "copy").read_bytes() == data
                    rounds += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for index in range(FORKS):
            if index % 6 == 0:
                subprocess.run(["true"], check=True, timeout=60)
            else:
                # The child writes to what it has inherited: its own copy, never the parent's.
                expect_child_ok(fork_and(lambda: None))
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]
    assert rounds > 0
