"""Callbacks come also where the process has more than 1024 descriptors, the limit of select(2)."""

from __future__ import annotations

from pathlib import Path

from support.child import run_child

SCRIPT = """
import os, resource, sys, threading
import aio
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
kept = [os.dup(0) for _ in range(1100)]
called = threading.Event()
with aio.aio_handle() as handle:
    future = handle.submit_pwrite(bytearray(16 << 20), sys.argv[1])
    future.add_done_callback(lambda future: called.set())
    assert called.wait(60), "no callback"
"""


def test_they_come(disk: Path) -> None:
    done = run_child(SCRIPT, disk / "file", timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
