"""A failed transfer gives back its extents and buffers, and the store goes on (G-13)."""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from aio.swap import StoreFuture, SwapError, SwapStore, layout
from pinned_manager import pinned_stats
from support.broken_store import broken_file
from support.buffers import pattern, raw, tensor_of
from support.counters import until
from support.held_transfer import held_transfer

NBYTES = 300_001
OLD, NEW = pattern(NBYTES, 1), pattern(NBYTES, 2)


@pytest.fixture
def store(disk: Path, make_handle: Callable[..., Any]) -> Iterator[SwapStore]:
    with SwapStore(disk, make_handle()) as made:
        made.put("x", [tensor_of(OLD)]).result()
        yield made


def test_a_failed_put_leaves_the_old_content(store: SwapStore) -> None:
    source = tensor_of(NEW)
    before = store.stats()
    for _ in range(3):
        with broken_file(store) as path:
            error = store.put("x", [source]).exception()
            assert isinstance(error, aio.AioError)
            assert (error.errno, error.filename) == (errno.EISDIR, path)
            assert isinstance(store.put("y", [source]).exception(), aio.AioError)
        assert raw(source) == NEW
        assert raw(store.get("x").result()[0]) == OLD
        assert store.names() == ["x"]
        assert store.stats()["allocated"] == before["allocated"]
    store.put("x", [source]).result()
    assert raw(store.get("x").result()[0]) == NEW


def test_a_failed_get_can_be_repeated(store: SwapStore) -> None:
    def attempt() -> None:
        with broken_file(store):
            for call in (store.get, store.prefetch, store.get):
                error = call("x").exception()
                assert isinstance(error, aio.AioError)
                assert error.errno == errno.EISDIR

    gc.collect()  # what earlier tests left is not meant
    attempt()
    del attempt  # with the errors, whose tracebacks hold what was in flight
    # The thread that completed them may be about to let go.
    until(lambda: pinned_stats()["by_tag"].get("swap", 0) == 0, "buffers given back")
    assert raw(store.get("x").result()[0]) == OLD
    assert store.stats()["in_flight"] == 0


def test_a_failed_prefetch_is_not_what_get_returns(store: SwapStore) -> None:
    with broken_file(store):
        assert store.prefetch("x").exception() is not None
    assert raw(store.get("x").result()[0]) == OLD
    with broken_file(store):
        assert store.prefetch("x").exception() is not None
    assert store.prefetch("x").result() == NBYTES
    assert raw(store.get("x").result()[0]) == OLD


def test_a_failed_put_in_place_says_that_nothing_is_whole(store: SwapStore) -> None:
    with broken_file(store):
        error = store.put("x", [tensor_of(NEW)], in_place=True).exception()
        assert isinstance(error, aio.AioError)
    failure = store.get("x").exception()
    assert isinstance(failure, SwapError)
    assert failure.__cause__ is error
    store.put("x", [tensor_of(NEW)], in_place=True).result()
    assert raw(store.get("x").result()[0]) == NEW


def test_a_get_behind_a_failed_put_does_not_return_old_content(store: SwapStore) -> None:
    """Whoever puts and gets at once means the new content."""
    with held_transfer(store._core._handle, "submit_pwrite_many") as transfer:
        written = store.put("x", [tensor_of(NEW)])
        read = store.get("x")
        assert not read.done()
        transfer.set_exception(aio.AioError(errno.EIO, "the drive is gone"))
    assert isinstance(written.exception(), aio.AioError)
    assert read.exception() is written.exception()
    assert raw(store.get("x").result()[0]) == OLD  # said by now


def test_pieces_of_a_failed_put_are_all_waited_for(store: SwapStore, monkeypatch: Any) -> None:
    """A chunk that cannot be submitted does not leave the others' extents to somebody else."""
    handle = store._core._handle
    before = store.stats()["allocated"]

    def fail(items: Any) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(type(handle), "submit_pwrite_many", lambda handle, items: fail(items))
    with held_transfer(handle, "submit_pwrite_many") as transfer:
        written = store.put("y", [torch.ones(1 << 20), torch.ones(3)])  # a body, and a chunk
        assert not written.done()
        assert store.stats()["allocated"] > before
        transfer.set_result(1 << 22)
    with pytest.raises(RuntimeError, match="no more"):
        written.result()
    assert store.stats()["allocated"] == before
    assert store.stats()["in_flight"] == 0


def test_a_put_that_has_failed_is_not_carried_on(
    store: SwapStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of many chunks, of which the first cannot be written."""
    handle = store._core._handle
    monkeypatch.setattr(layout, "CHUNK_BYTES", 16 << 10)
    before = store.stats()["allocated"]
    submit, submitted = type(handle).submit_pwrite_many, []

    def counted(handle: Any, items: Any) -> Any:
        submitted.append(items)
        return submit(handle, items)

    monkeypatch.setattr(type(handle), "submit_pwrite_many", counted)
    with held_transfer(handle, "submit_pwrite_many") as transfer:
        written = store.put("y", [tensor_of(NEW[:9000]) for _ in range(40)])
        assert len(submitted) == 7  # and the first: no more are on the way at a time
        assert not written.done()
        transfer.set_exception(aio.AioError(errno.EIO, "the drive is gone"))
    error = written.exception()
    assert isinstance(error, aio.AioError)
    assert error.errno == errno.EIO
    assert len(submitted) == 7
    assert store.names() == ["x"]
    assert store.stats()["allocated"] == before


def test_what_a_future_says(store: SwapStore) -> None:
    with held_transfer(store._core._handle, "submit_pwrite_many") as transfer:
        written = store.put("y", [torch.ones(3)])
        assert repr(written) == "<StoreFuture in flight>"
        for ask in (written.result, written.exception):
            with pytest.raises(TimeoutError, match=r"not done within 0\.001 seconds"):
                ask(0.001)
        transfer.set_result(12)
    assert written.exception(60) is None
    assert repr(written) == "<StoreFuture done>"


def test_ctrl_c_loses_nothing(store: SwapStore) -> None:
    with held_transfer(store._core._handle, "submit_pwrite_many") as transfer:
        written = store.put("y", [torch.ones(3)])
        interrupting = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            wait_for(interrupting, written)
        interrupting.join()
        assert not written.done()
        with pytest.raises(TimeoutError):
            written.result(0)
        transfer.set_result(12)
    assert written.result() == 12
    assert store.names() == ["x", "y"]


def wait_for(interrupting: threading.Thread, future: StoreFuture) -> None:
    interrupting.start()
    future.result()
