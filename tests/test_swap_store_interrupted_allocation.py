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
