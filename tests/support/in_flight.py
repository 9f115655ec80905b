"""Requests that are accepted and fail later: files for which the kernel does it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Takes numbers only: the open succeeds and the write is refused.
REFUSES_TEXT = Path("/proc/self/oom_score_adj")
REFUSES_TEXT_ERRNO = 22  # EINVAL
TEXT = b"not a number"

# Says 4096 bytes and holds a few: the end comes in the middle of the request.
SHORTER_THAN_IT_SAYS = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def refuses_text() -> Path:
    """A file whose every write of TEXT fails in flight with REFUSES_TEXT_ERRNO."""
    try:
        descriptor = os.open(REFUSES_TEXT, os.O_WRONLY)
    except OSError as error:
        pytest.skip(f"no file that refuses a write in flight: {error}")
    try:
        os.pwrite(descriptor, TEXT, 0)
    except OSError as error:
        if error.errno == REFUSES_TEXT_ERRNO:
            return REFUSES_TEXT
    finally:
        os.close(descriptor)
    pytest.skip(f"{REFUSES_TEXT} does not refuse text")


def shorter_than_it_says() -> tuple[Path, bytes, int]:
    """A file, what it holds, and how many bytes it says that it holds."""
    path = SHORTER_THAN_IT_SAYS
    if not path.is_file():
        pytest.skip(f"no {path}")
    contents = path.read_bytes()
    says = path.stat().st_size
    if says <= len(contents):
        pytest.skip(f"{path} tells its size truly")
    return path, contents, says


def sparse(path: Path, nbytes: int) -> Path:
    """A file of zeros that takes no room."""
    with path.open("wb") as file:
        file.truncate(nbytes)
    return path
