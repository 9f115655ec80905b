"""However a store ends, its files go, and nobody else's; a forked child owns nothing (D-04)."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from aio.swap import SwapStore, core
from support.child import run_child
from support.counters import counters, until
from support.forks import expect_child_ok, fork_and
from support.held_transfer import held_transfer

GROUP = [torch.ones(1_000_000), torch.ones(3)]


def test_close(tmp_path: Path) -> None:
    """Waits for what was started, deletes, and leaves the caller's handle open."""
    with aio.aio_handle() as handle:
        store = SwapStore(tmp_path, handle)
        futures = [store.put(str(index), GROUP) for index in range(5)]
        read = store.get("4")
        store.prefetch("3")
        store.close()
        assert list(tmp_path.iterdir()) == []
        assert all(future.done() for future in futures)
        assert torch.equal(read.result()[0], GROUP[0])
        store.close()
        assert store.closed
        assert not handle.closed
        for call in (store.get, store.delete, store.prefetch, lambda name: store.put(name, GROUP)):
            with pytest.raises(RuntimeError, match="closed"):
                call("1")
        with pytest.raises(RuntimeError, match="closed"):
            store.flush()
    assert "closed" in repr(store)


def test_closed_while_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SwapStore(tmp_path)
    look = os.statvfs

    def late(path: Any) -> os.statvfs_result:
        store.close()
        return look(path)

    monkeypatch.setattr(os, "statvfs", late)
    with pytest.raises(RuntimeError, match="closed"):
        store.stats()


def test_nothing_is_held(tmp_path: Path) -> None:
    def use() -> None:
        with SwapStore([tmp_path / "a", tmp_path / "b"], checksum=None) as store:
            store.put("x", GROUP).result()
            store.get("x").result()
            store.flush().result()

    use()
    with counters():
        for _ in range(3):
            use()


@pytest.mark.parametrize("cycle", [False, True])
@pytest.mark.parametrize("busy", [False, True])
def test_dropping_it(tmp_path: Path, cycle: bool, busy: bool) -> None:
    """At once where nothing is in flight, else with the last operation."""
    store: Any = SwapStore(tmp_path)
    future = store.put("x", GROUP)
    if not busy:
        future.result()
        del future
    if cycle:
        store.itself = [store]
    del store
    gc.collect()
    until(lambda: list(tmp_path.iterdir()) == [], "the files are gone")
    if busy:
        assert future.result() == sum(tensor.nbytes for tensor in GROUP)


SCRIPT = """
import sys, threading
import torch
from aio.swap import SwapStore, core
group = [torch.ones(1_000_000), torch.ones(3)]
store = SwapStore(sys.argv[1], checksum=sys.argv[2] or None)
for index in range(20):
    store.put(str(index % 7), group)
    store.prefetch(str(index % 3))
cycle = [SwapStore(sys.argv[1])]
cycle.append(cycle)

def daemon():
    try:
        while True:
            store.put("d", group).result()
    except RuntimeError:
        threading.Event().wait()

threading.Thread(target=daemon, daemon=True).start()
"""


@pytest.mark.parametrize("checksum", ["", "xxh3"])
def test_interpreter_exit(tmp_path: Path, checksum: str) -> None:
    if checksum:
        pytest.importorskip("xxhash", reason="xxhash is not installed")
    done = run_child(SCRIPT, tmp_path, checksum)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_fork(tmp_path: Path, make_handle: Any) -> None:
    """Whatever the child does, the parent's data stays; it waits for none of the parent's work."""
    handle = make_handle()
    store = SwapStore(tmp_path, handle)
    store.put("x", GROUP).result()

    def child() -> None:
        calls = (
            lambda: store.get("x"),
            lambda: store.put("x", GROUP),
            lambda: store.delete("x"),
            lambda: store.prefetch("x"),
            store.flush,
            store.names,
            store.stats,
        )
        for call in calls:
            with pytest.raises(RuntimeError, match="fork"):
                call()
        assert store.closed
        store.close()
        repr(store)

    def leaves() -> None:
        nonlocal store
        del store
        gc.collect()

    with held_transfer(handle, "submit_pwrite_many"):
        store.put("y", GROUP)
        expect_child_ok(fork_and(child))
        expect_child_ok(fork_and(leaves))
    assert len(list(tmp_path.iterdir())) == 1
    assert torch.equal(store.get("x").result()[0], GROUP[0])
    store.close()


def test_closing_in_many_threads(tmp_path: Path, make_handle: Any) -> None:
    store = SwapStore(tmp_path, make_handle())
    store.put("x", GROUP)
    failures: list[BaseException] = []

    def close() -> None:
        try:
            store.close()
            assert list(tmp_path.iterdir()) == []
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def obstructed(store: SwapStore, directory: int = 0) -> Path:
    """A namespace of the store in which something cannot be unlinked, as if a drive had failed."""
    path = Path(store.stats()["directories"][directory]["path"])
    (path / "segment-999999").mkdir()
    return path


def test_a_directory_that_cannot_be_deleted(tmp_path: Path) -> None:
    """It is told; the other one is deleted, and nothing else is held."""
    with counters():
        store = SwapStore([tmp_path / "a", tmp_path / "b"], bandwidths=[1, 1])
        store.put("x", GROUP).result()
        left = obstructed(store)
        with pytest.raises(IsADirectoryError) as caught:
            store.close()
        assert caught.value.filename == str(left / "segment-999999")
        assert list((tmp_path / "a").iterdir()) == [left]
        assert list((tmp_path / "b").iterdir()) == []
        store.close()
        assert store.closed
    (left / "segment-999999").rmdir()
    with SwapStore(tmp_path / "a"):  # its lock is free
        assert not left.exists()


def test_dropping_one_that_cannot_be_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SwapStore(tmp_path)
    store.put("x", GROUP).result()
    left = obstructed(store)
    del store
    gc.collect()
    # Perhaps in the thread of the last operation, which was about to let go.
    until(lambda: "dropped" in caplog.text, "it is told")
    assert f"files of a store that was dropped are left: [Errno 21] Is a directory: '{left}" in (
        caplog.text
    )


def test_interpreter_exit_with_one_that_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is called then tells it, and goes on with the others."""
    stores = [SwapStore(tmp_path, name=name) for name in ("first", "second")]
    left = obstructed(stores[0])
    monkeypatch.setattr(core, "_open_cores", [store._core for store in stores])
    core._close_all()
    assert list(tmp_path.iterdir()) == [left]
    assert all(store.closed for store in stores)
    (record,) = caplog.records
    words = "files of a store are left: [Errno 21] Is a directory"
    assert record.getMessage() == f"{words}: '{left / 'segment-999999'}'"


def test_dropped_where_its_lock_is_held(tmp_path: Path, make_handle: Any) -> None:
    """The garbage collector may come at any moment; the operation that holds the lock cleans up."""
    handle = make_handle()
    stores = [SwapStore(tmp_path, handle)]
    parts = stores[0]._core
    counted = parts._counts.ended
    dropped: list[bool] = []

    def dropped_meanwhile(*arguments: Any) -> None:
        dropped.append(parts._records.lock.locked())
        stores.clear()
        gc.collect()
        counted(*arguments)

    parts._counts.ended = dropped_meanwhile  # type: ignore[method-assign]
    with held_transfer(handle, "submit_pwrite_many") as transfer:
        future = stores[0].put("x", [torch.ones(3)])
        ending = threading.Thread(target=transfer.set_result, args=(12,), daemon=True)
        ending.start()
        ending.join(60)
        assert not ending.is_alive()
    assert future.result() == 12
    assert dropped == [True]
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_files_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SwapStore([tmp_path / "a", tmp_path / "b"], bandwidths=[1, 1])
    store.put("x", GROUP).result()
    unlink, interrupted = Path.unlink, []

    def interrupt(path: Path, **how: bool) -> None:
        if not interrupted:
            interrupted.append(path)
            signal.raise_signal(signal.SIGINT)
        unlink(path, **how)

    monkeypatch.setattr(Path, "unlink", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert len(interrupted) == 1
    assert [list((tmp_path / name).iterdir()) for name in "ab"] == [[], []]


def test_files_that_are_gone_already(tmp_path: Path, make_handle: Any) -> None:
    store = SwapStore(tmp_path, make_handle())
    store.put("x", GROUP).result()
    (namespace,) = tmp_path.iterdir()
    for name in os.listdir(namespace):
        (namespace / name).unlink()
    namespace.rmdir()
    store.close()
