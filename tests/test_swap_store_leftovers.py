"""What cannot be reclaimed is told, left, and keeps nobody from making a store there (G-03)."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from aio.swap import SwapStore
from aio.swap.ownership import LOCK_NAME, Namespace, reclaim_leftovers
from support.counters import counters

LEFTOVER = "swap-0123456789abcdef"


@pytest.fixture
def leftover(tmp_path: Path) -> Path:
    """A directory that is named as a store's."""
    path = tmp_path / LEFTOVER
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aio.swap")


def told(caplog: pytest.LogCaptureFixture, path: Path) -> str:
    """What the log says of the path, with the level."""
    (record,) = (record for record in caplog.records if str(path) in record.getMessage())
    return f"{record.levelname} {record.getMessage()}"


def told_of(path: Path, caplog: pytest.LogCaptureFixture) -> str:
    """What is told; nothing of it goes, nothing is held, and a store is made all the same."""
    before = sorted(path.iterdir())
    with counters():
        assert reclaim_leftovers(path.parent, "swap") == []
    words = told(caplog, path)
    assert sorted(path.iterdir()) == before
    with SwapStore(path.parent):
        assert len(list(path.parent.iterdir())) == 2
    assert list(path.parent.iterdir()) == [path]
    return words


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_a_lock_that_cannot_be_opened(leftover: Path, kind: str, caplog: Any) -> None:
    lock = leftover / LOCK_NAME
    if kind == "directory":
        lock.mkdir()
    else:
        lock.symlink_to(leftover / "elsewhere")
    assert told_of(leftover, caplog).startswith(f"INFO {leftover} is left alone: ")


@pytest.mark.parametrize("record", [b"[1]", b"{}", b"\xff", b"{", b"[" * 4096, b'"swap"'])
def test_a_lock_of_another_program(leftover: Path, record: bytes, caplog: Any) -> None:
    (leftover / LOCK_NAME).write_bytes(record)
    (leftover / "segment-000000").write_bytes(b"mine")
    words = "is left alone: its lock is not a store's"
    assert told_of(leftover, caplog) == f"INFO {leftover} {words}"


def test_a_lock_that_cannot_be_read(leftover: Path, caplog: Any) -> None:
    os.mkfifo(leftover / LOCK_NAME)
    words = f"could not be reclaimed: [Errno {errno.ESPIPE}]"
    assert told_of(leftover, caplog).startswith(f"WARNING {leftover} {words}")


def test_a_file_that_cannot_be_deleted(tmp_path: Path, caplog: Any) -> None:
    """The rest of it stays too, with the lock, for the next one that tries."""
    namespace = Namespace.make(tmp_path, "swap")
    namespace.disown()
    (namespace.path / "segment-000000").mkdir()
    words = f"could not be reclaimed: [Errno {errno.EISDIR}]"
    assert told_of(namespace.path, caplog).startswith(f"WARNING {namespace.path} {words}")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EBUSY])
def test_an_empty_directory_that_cannot_be_deleted(
    leftover: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Another user's in a sticky directory, or the mount point of something."""
    rmdir = Path.rmdir

    def refuse(path: Path) -> None:
        if path == leftover:
            raise OSError(number, os.strerror(number), str(path))
        rmdir(path)

    monkeypatch.setattr(Path, "rmdir", refuse)
    words = f"could not be reclaimed: [Errno {number}]"
    assert told_of(leftover, caplog).startswith(f"WARNING {leftover} {words}")


def test_what_is_reclaimed_is_told(tmp_path: Path, caplog: Any) -> None:
    namespace = Namespace.make(tmp_path, "swap")
    namespace.disown()
    assert reclaim_leftovers(tmp_path, "swap") == [namespace.path]
    assert told(caplog, namespace.path) == f"INFO reclaimed {namespace.path}"
