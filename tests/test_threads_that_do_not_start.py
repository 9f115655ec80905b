"""A process that may start no more threads gets an error once, and goes on when it may again."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import aio
from aio import endpoints, futures, stats_server
from aio.swap import SwapStore
from aio.swap.background import Background
from support.buffers import pattern, raw, tensor_of
from support.counters import PATIENCE_S
from support.held_transfer import held_transfer
from support.no_threads import REFUSED, no_threads

DATA = pattern(100_001)


def test_callbacks_come_once_there_is_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futures, "_callbacks", futures._CallbackThread())
    ticket: Any = Ticket()
    future = aio.IOFuture(ticket)
    called = threading.Event()
    with no_threads(), pytest.raises(RuntimeError, match=REFUSED):
        future.add_done_callback(lambda _: pytest.fail("refused, but called"))
    future.add_done_callback(lambda _: called.set())
    ticket.end()
    assert called.wait(PATIENCE_S)


class Ticket:
    """What a future waits for, ended by the test."""

    def __init__(self) -> None:
        self._outcome: Future[int] = Future()

    def end(self) -> None:
        self._outcome.set_result(1)

    def done(self) -> bool:
        return self._outcome.done()

    def notify(self, channel: Any, token: int) -> None:
        self._outcome.add_done_callback(lambda _: channel.push(token))


def test_a_store_changes_nothing(disk: Path, make_handle: Any) -> None:
    handle = make_handle()
    with SwapStore(disk, handle) as store:
        for start in (
            lambda: store.put("x", [tensor_of(DATA)]),
            store.flush,
        ):
            with no_threads(), pytest.raises(RuntimeError, match=REFUSED):
                start()
        assert store.names() == []
        assert (store.stats()["allocated"], store.stats()["in_flight"]) == (0, 0)
        # Nobody waits for the future: the thread alone brings it to its end.
        with held_transfer(handle, "submit_pwrite_many") as transfer:
            called = threading.Event()
            store.put("x", [tensor_of(DATA)]).add_done_callback(lambda _: called.set())
            transfer.set_result(len(DATA))
            assert called.wait(PATIENCE_S)


def test_work_in_the_background_is_done_once() -> None:
    """Done by the caller instead, it must not be done again later, when its data has changed."""
    background = Background()
    done: list[str] = []
    with no_threads():
        assert background.submit(done.append, "first").exception(0) is None
    background.submit(done.append, "second").result(PATIENCE_S)
    background.stop(wait=True)
    assert done == ["first", "second"]


def test_checksums_are_those_of_what_was_put(disk: Path) -> None:
    pytest.importorskip("xxhash", reason="xxhash is not installed")
    with SwapStore(disk, checksum="xxh3") as store:
        store._core._completions.start()
        source = tensor_of(DATA)
        with no_threads():
            store.put("x", [source]).result()
        source.zero_()
        store.put("y", [source]).result()
        assert raw(store.get("x").result()[0]) == DATA


def test_deepnvme_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A handle is made all the same, and no socket says that somebody answers."""
    monkeypatch.setattr(endpoints, "directories", lambda: [tmp_path / "deepnvme"])
    monkeypatch.setattr(stats_server, "_state", stats_server._State())
    monkeypatch.setenv("DEEPNVME_TOP", "1")
    with no_threads():
        aio.aio_handle().close()
        with pytest.raises(OSError, match=REFUSED):
            aio.serve_stats()
    assert "cannot look at this process" in caplog.text
    assert endpoints.living_endpoints() == {}
    path = aio.serve_stats()
    assert endpoints.ask(path)["handles"] == []
    stats_server._stop()
