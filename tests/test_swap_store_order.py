"""Operations on a name take effect in the order of the calls, from one thread or many (group G)."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aio
from aio import aio_handle
from aio.swap import StoreFuture, SwapStore
from support.counters import until
from support.held_transfer import held_transfer

NUMELS = (1, 1000, 70_001)
THREADS = 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: Any) -> Iterator[SwapStore]:
    folder: Path = tmp_path_factory.mktemp("store")
    with aio_handle() as handle, SwapStore(folder, handle, segment_bytes=1 << 22) as made:
        yield made


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "in_place", "get", "out", "prefetch", "delete"]),
        st.sampled_from("ab"),
        st.sampled_from(NUMELS),
    ),
    max_size=25,
)


@given(ACTIONS)
def test_against_a_dict(store: SwapStore, actions: list[tuple[str, str, int]]) -> None:
    """Nothing is waited for before the end: every read sees the put that was called before it."""
    model: dict[str, torch.Tensor] = {}
    reads: list[tuple[StoreFuture, torch.Tensor]] = []
    others: list[StoreFuture] = []
    for number, (action, name, numel) in enumerate(actions):
        if action in ("put", "in_place"):
            tensor = torch.full((numel,), float(number))
            model[name] = tensor
            others.append(store.put(name, [tensor], in_place=action == "in_place"))
        elif name not in model:
            for call in (store.get, store.delete, store.prefetch):
                with pytest.raises(KeyError):
                    call(name)
        elif action == "get":
            reads.append((store.get(name), model[name]))
        elif action == "out":
            reads.append((store.get(name, [torch.empty_like(model[name])]), model[name]))
        elif action == "prefetch":
            others.append(store.prefetch(name))
        else:
            store.delete(name)
            del model[name]
        assert sorted(store.names()) == sorted(model)
    for future, expected in reads:
        assert torch.equal(future.result()[0], expected)
    for future in others:
        future.result()
    for name, expected in model.items():
        assert torch.equal(store.get(name).result()[0], expected)
        store.delete(name)
    until(lambda: store.stats()["allocated"] == 0, "all extents given back")


def test_a_long_chain(store: SwapStore) -> None:
    """A thousand puts of one name, of which only the last is waited for."""
    for number in range(1000):
        last = store.put("chain", [torch.full((2,), number)] if number % 3 else [])
    last = store.put("chain", [torch.full((2,), 1000)])
    last.result()
    assert store.get("chain").result()[0].tolist() == [1000, 1000]
    store.delete("chain")


def test_threads(store: SwapStore) -> None:
    """Each has names of its own; they share one, whose content is always whole."""
    store.put("shared", [torch.zeros(50_000)]).result()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(15):
                value = float(100 * number + step)
                store.put(f"own{number}", [torch.full((9000,), value)], in_place=step % 2 == 0)
                shared = store.put("shared", [torch.full((50_000,), value)])
                read = store.get("shared")
                assert bool((store.get(f"own{number}").result()[0] == value).all())
                shared.result()
                assert read.result()[0].unique().numel() == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for name in store.names():
        store.delete(name)


def test_deleting_under_readers(store: SwapStore) -> None:
    """They get what was there, although others put at once."""
    for number in range(20):
        store.put("old", [torch.full((500_000,), float(number))]).result()
        reads = [store.get("old") for _ in range(3)]
        store.delete("old")
        later = [store.put(f"new{i}", [torch.full((500_000,), -1.0)]) for i in range(3)]
        for read in reads:
            assert bool((read.result()[0] == number).all())
        for future in later:
            future.result()
    for name in store.names():
        store.delete(name)


def test_in_place_waits_for_readers(store: SwapStore) -> None:
    store.put("i", [torch.ones(3)]).result()
    handle = store._core._handle
    with held_transfer(handle, "submit_pread_many") as transfer:
        read = store.get("i")
        writes = handle.stats()["requests"]["write"]
        overwrite = store.put("i", [torch.zeros(3)], in_place=True)
        assert handle.stats()["requests"]["write"] == writes
        transfer.set_result(12)
    overwrite.result()
    read.result()
    assert store.get("i").result()[0].tolist() == [0, 0, 0]
    store.delete("i")


def test_a_put_behind_a_put_in_place(store: SwapStore) -> None:
    """The later one stays, and is what a read waits for."""
    store.put("b", [torch.ones(3)]).result()
    handle = store._core._handle
    failure = aio.AioError(errno.EIO, "the drive is gone")
    with held_transfer(handle, "submit_pwrite_many") as transfer:
        first = store.put("b", [torch.zeros(3)], in_place=True)
        second = store.put("b", [torch.full((5,), 2.0)])
        with held_transfer(handle, "submit_pwrite_many") as later:
            transfer.set_result(12)
            assert first.result() == 12
            read = store.get("b")
            assert not read.done()
            later.set_exception(failure)
    assert second.exception() is read.exception() is failure
    store.put("b", [torch.full((5,), 2.0)], in_place=True)
    third = store.put("b", [torch.full((6,), 3.0)])
    assert store.get("b").result()[0].tolist() == [3.0] * 6
    assert third.result() == 24
    store.delete("b")
    assert store.stats()["allocated"] == 0


@pytest.mark.parametrize("fails", [False, True])
def test_deleting_what_is_being_put(store: SwapStore, fails: bool) -> None:
    """It is gone at once; its room with the transfer. Another put of the name is another thing."""
    with held_transfer(store._core._handle, "submit_pwrite_many") as transfer:
        first = store.put("d", [torch.ones(3)])
        store.delete("d")
        assert "d" not in store
        with pytest.raises(KeyError):
            store.get("d")
        assert store.put("d", [torch.zeros(2)]).result() == 8  # waits for nobody
        assert store.stats()["allocated"] == 2 * 4096
        if fails:
            transfer.set_exception(aio.AioError(errno.EIO, "the drive is gone"))
        else:
            transfer.set_result(12)
    assert (first.exception() is None) == (not fails)
    assert store.stats()["allocated"] == 4096
    assert store.get("d").result()[0].tolist() == [0, 0]
    store.delete("d")
    assert store.stats()["allocated"] == 0


def test_prefetch(store: SwapStore) -> None:
    """One read serves prefetch and get; a put makes it stale."""
    store.put("p", {"x": torch.ones(5000)}).result()
    before = store.stats()
    assert store.prefetch("p").result() == store.prefetch("p").result() == 20_000
    assert store.stats()["prefetched"] == 20_000
    out = {"x": torch.zeros(5000)}
    assert store.get("p", out).result() is out
    assert torch.equal(out["x"], torch.ones(5000))
    after = store.stats()
    assert after["reads"] - before["reads"] == 1
    assert after["prefetch_hits"] - before["prefetch_hits"] == 1
    assert after["prefetched"] == 0
    store.prefetch("p")
    store.put("p", {"x": torch.full((5000,), 2.0)}, in_place=True)
    assert bool((store.get("p").result()["x"] == 2).all())
    store.delete("p")


def test_flush(store: SwapStore) -> None:
    store.put("f", [torch.ones(5000)])
    assert store.flush().result() is None
    store.delete("f")


def test_futures(store: SwapStore) -> None:
    tensors = [torch.ones(100_000)]
    future = store.put("f", tensors)
    assert future.exception(60) is None
    assert future.done()
    assert future.result(0) == 400_000
    called = threading.Event()
    found: list[StoreFuture] = []

    def callback(done: Any) -> None:
        # A callback may use the store, and wait.
        assert torch.equal(store.get("f").result()[0], tensors[0])
        found.append(done)
        called.set()

    future.add_done_callback(callback)
    later = store.get("f")
    later.add_done_callback(callback)
    until(lambda: len(found) == 2, "both callbacks")
    assert called.is_set()

    async def use() -> Any:
        await store.put("g", tensors)
        both = await asyncio.gather(*(_read(store, name) for name in "fg"))
        return both

    assert all(torch.equal(group[0], tensors[0]) for group in asyncio.run(use()))
    for name in "fg":
        store.delete(name)


async def _read(store: SwapStore, name: str) -> Any:
    return await store.get(name)
