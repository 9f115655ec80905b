"""File systems made for one test, always unmounted: small, without O_DIRECT, 4096-byte sectors."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest


def file_system_of(path: Path) -> str:
    """The type of the file system that holds `path`, as the kernel names it."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    found = "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        if left.split()[2] == wanted:
            found = right.split()[0]
    return found


def _run_or_skip(*command: str) -> str:
    """Run a command that only root, or only some machines, can run; skip with its words where it
    fails.
    """
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")


@contextmanager
def mounted(point: Path, *arguments: str) -> Iterator[Path]:
    """`mount ARGUMENTS point`, unmounted at the end."""
    _need_root()
    point.mkdir()
    _run_or_skip("mount", *arguments, str(point))
    try:
        yield point
    finally:
        # Lazy: a descriptor that a failing test left open must not leave the mount behind.
        subprocess.run(["umount", "--lazy", str(point)], timeout=60, check=True)


@contextmanager
def small_tmpfs(point: Path, nbytes: int) -> Iterator[Path]:
    """A tmpfs that holds `nbytes`: a write past that is really short (FX1)."""
    with mounted(point, "-t", "tmpfs", "-o", f"size={nbytes}", "none") as path:
        yield path


@contextmanager
def ramfs(point: Path) -> Iterator[Path]:
    """A file system that refuses O_DIRECT at open (FX2)."""
    with mounted(point, "-t", "ramfs", "none") as path:
        try:
            os.close(os.open(path / "probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
        except OSError:
            yield path
        else:
            pytest.skip("this kernel's ramfs accepts O_DIRECT")


@contextmanager
def loop_device(image: Path, nbytes: int, sector_size: int = 512) -> Iterator[Path]:
    """A block device of `nbytes`, zeros, kept in the new file `image`."""
    _need_root()
    with open(image, "wb") as file:
        file.truncate(nbytes)
    with ExitStack() as undo:
        undo.callback(image.unlink)
        loop = _run_or_skip(
            "losetup", "--show", "-f", "--sector-size", str(sector_size), str(image)
        )
        # Still mounted or open, it detaches by itself once that is over.
        undo.callback(subprocess.run, ["losetup", "-d", loop], timeout=60, check=False)
        yield Path(loop)


@contextmanager
def ext4_image(point: Path, nbytes: int, sector_size: int = 512) -> Iterator[Path]:
    """An ext4 of `nbytes` on a loop device whose sectors have `sector_size` bytes (FX3, FX4)."""
    with loop_device(point.with_suffix(".img"), nbytes, sector_size) as loop:
        _run_or_skip("mkfs.ext4", "-q", "-b", "4096", str(loop))
        with mounted(point, "-t", "ext4", str(loop)) as path:
            yield path
