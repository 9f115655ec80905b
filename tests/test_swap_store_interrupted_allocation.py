"""What is not allocated to its end, for whatever reason, leaves no file, extent or directory."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from aio.swap import SwapStore
from support.buffers import pattern, raw, tensor_of
from support.counters import PATIENCE_S, counters

DATA = pattern(300_001)
MIB = 1 << 20


def test_ctrl_c_while_a_file_is_allocated(
    disk: Path, make_handle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """posix_fallocate of a large file takes long on file systems that have to write it."""
    with SwapStore(disk, make_handle()) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.put("x", [tensor_of(DATA)])
        assert store.names() == []
        store.put("x", [tensor_of(DATA)]).result()  # not FileExistsError
        assert raw(store.get("x").result()[0]) == DATA


def interrupted(*arguments: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("failure", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
def test_a_group_of_several_files_of_which_one_cannot_be_made(
    disk: Path, make_handle: Any, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    group = [torch.ones(MIB, dtype=torch.uint8) for _ in range(3)]
    with SwapStore(disk, make_handle(), segment_bytes=MIB) as store:
        make = os.open

        def refuse_the_second(path: Any, *arguments: Any, **named: Any) -> int:
            if str(path).endswith("segment-000001"):
                raise failure
            return make(path, *arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse_the_second)
            with pytest.raises(type(failure)):
                store.put("x", group)
        assert store.stats()["allocated"] == 0
        store.put("x", group).result()
        assert store.stats()["allocated"] == 3 * MIB


def test_a_file_whose_allocation_fails(
    disk: Path, make_handle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for want of room: it is the caller's to know, with the file."""

    def fail(*arguments: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with SwapStore(disk, make_handle()) as store:
        (directory,) = store.stats()["directories"]
        with counters(), monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", fail)
            with pytest.raises(OSError, match="Input/output error") as caught:
                store.put("x", [tensor_of(DATA)])
        path = Path(directory["path"], "segment-000000")
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))
        assert not path.exists()
        assert store.names() == []
        assert store.stats()["allocated"] == 0
        store.put("x", [tensor_of(DATA)]).result()
        assert raw(store.get("x").result()[0]) == DATA


def test_a_store_that_cannot_measure_its_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handle that it has made by then goes, too."""

    def fail(*arguments: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with counters(), monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", fail)
        with pytest.raises(OSError, match="Input/output error"):
            SwapStore([tmp_path / "a", tmp_path / "b"])
    assert [list((tmp_path / name).iterdir()) for name in "ab"] == [[], []]


def test_a_store_that_may_not_open_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.open

    def refuse(path: Any, *arguments: Any, **named: Any) -> int:
        if str(path).endswith("/lock"):
            raise OSError(errno.EMFILE, "Too many open files")
        return make(path, *arguments, **named)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        SwapStore(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["flock", "pwrite"])
def test_a_directory_that_cannot_be_owned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """On a file system without locks, or without room for the record."""

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "refused")

    with counters(), monkeypatch.context() as patch:
        patch.setattr(*((fcntl, "flock") if call == "flock" else (os, "pwrite")), refuse)
        with pytest.raises(OSError, match="refused"):
            SwapStore(tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_collected_while_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of the interpreter, which closes what is still in a cycle: the collector may
    find that cycle at any moment, and must not wait for the close that it interrupts.
    """
    store = SwapStore(tmp_path)
    core = store._core
    namespace = core._namespaces[0]
    remove = namespace.remove

    def remove_and_collect() -> None:
        core.abandon()  # what the finalizer of the store calls
        remove()

    monkeypatch.setattr(namespace, "remove", remove_and_collect)
    closing = threading.Thread(target=store.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert list(tmp_path.iterdir()) == []
