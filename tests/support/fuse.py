"""The file system of fuse_server.py, mounted for one test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

HANG_S = 60


@dataclass
class FuseMount:
    """Where it is, and the process that serves it."""

    path: Path
    server: subprocess.Popen[str]

    def release(self) -> None:
        """Let the requests on held files go on."""
        (self.path / "release").touch()

    def vanish(self) -> None:
        """The server dies as a drive that is pulled out."""
        self.server.kill()
        self.server.wait(HANG_S)


@contextmanager
def fuse_mount(point: Path) -> Iterator[FuseMount]:
    """Mount it at `point`, a directory to make; unmounted at the end, whatever is in flight."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no /dev/fuse")
    point.mkdir()
    program = Path(__file__).with_name("fuse_server.py")
    server = subprocess.Popen(
        [sys.executable, "-S", "-E", str(program), str(point)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stderr is not None
    try:
        if server.stdout.readline() != "mounted\n":
            pytest.skip(f"FUSE cannot be mounted here: {server.stderr.read().strip()}")
        try:
            yield FuseMount(point, server)
        finally:
            # Killed first: requests that are still held then end with an error.
            server.kill()
            server.wait(HANG_S)
            subprocess.run(["umount", "--lazy", str(point)], timeout=HANG_S, check=True)
    finally:
        server.kill()
        server.wait(HANG_S)
        server.stdout.close()
        server.stderr.close()
