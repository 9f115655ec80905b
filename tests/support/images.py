"""Images of file systems other than ext4, made and mounted for one test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.mounts import mounted

MKFS = {"xfs": ("mkfs.xfs", "-q"), "btrfs": ("mkfs.btrfs", "-q")}
# What mkfs takes as its smallest, and some.
NBYTES = {"xfs": 320 << 20, "btrfs": 160 << 20}


@contextmanager
def image_of(kind: str, point: Path) -> Iterator[Path]:
    """A file system of type `kind` on a loop device; the sparse image is gone at the end."""
    command = MKFS[kind]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    image = point.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(NBYTES[kind])
    try:
        made = subprocess.run(
            [*command, str(image)], capture_output=True, text=True, timeout=60, check=False
        )
        if made.returncode != 0:
            pytest.skip(f"{command[0]}: {made.stderr.strip()}")
        with mounted(point, "-t", kind, "-o", "loop", str(image)) as path:
            yield path
    finally:
        image.unlink()
