"""IOFuture: result, exception, done, callbacks, await; nothing is kept open per future."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
import support.torch_threads  # noqa: F401
from _deepnvme.io import CompletionChannel
from support.buffers import pattern, raw, tensor_of
from support.counters import counters, until
from support.in_flight import REFUSES_TEXT_ERRNO, TEXT, refuses_text, sparse

NBYTES = 100_001
LONG = 16 << 20


class Slow:
    """A request of so many small transfers that it is still under way when it is looked at."""

    def __init__(self, backend: str, directory: Path, make_handle: Any) -> None:
        path = sparse(directory / "sparse", LONG)
        self.handle = make_handle(backend, block_size=512, queue_depth=1)
        self.buffer = torch.ones(LONG, dtype=torch.uint8)
        self.future = self.handle.submit_pread(self.buffer, path)

    def check(self) -> None:
        assert self.future.result() == LONG
        assert not bool(self.buffer.any())


def test_result_is_the_bytes_moved(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    future = handle.submit_pwrite(tensor_of(pattern(NBYTES)), path, file_offset=5)
    assert isinstance(future, aio.IOFuture)
    assert future.result() == NBYTES
    assert future.result(timeout=0) == NBYTES
    assert future.exception() is None
    assert future.exception(timeout=0) is None
    assert future.done() is True
    assert path.read_bytes() == bytes(5) + pattern(NBYTES)
    buffer = torch.zeros(NBYTES, dtype=torch.uint8)
    assert handle.submit_pread(buffer, path, 5).result(60) == NBYTES
    assert raw(buffer) == pattern(NBYTES)
    strided = torch.zeros(2, 1000, dtype=torch.uint8).t()
    assert handle.submit_pread(buffer=strided, filename=path).result(timeout=None) == 2000
    assert raw(strided) == path.read_bytes()[:2000]


def test_timeout(directory: Path, backend: str, make_handle: Any) -> None:
    slow = Slow(backend, directory, make_handle)
    assert slow.future.done() is False
    with pytest.raises(TimeoutError):
        slow.future.result(timeout=0)
    with pytest.raises(TimeoutError):
        slow.future.exception(timeout=0.0)
    with pytest.raises(TimeoutError):
        slow.future.result(1e-9)
    slow.check()


def test_a_timeout_that_is_no_number(directory: Path, backend: str, make_handle: Any) -> None:
    future = make_handle(backend).submit_pwrite(b"x" * 5000, directory / "file")
    for call in (future.result, future.exception):
        with pytest.raises(ValueError, match="timeout is not a number"):
            call(float("nan"))
    assert future.result() == 5000


def test_exception(directory: Path, backend: str, make_handle: Any) -> None:
    bad = refuses_text()
    future = make_handle(backend).submit_pwrite(tensor_of(TEXT), bad)
    error = future.exception()
    assert isinstance(error, aio.AioError)
    assert (error.errno, error.filename) == (REFUSES_TEXT_ERRNO, str(bad))
    for _ in range(2):
        with pytest.raises(aio.AioError) as caught:
            future.result()
        assert caught.value.errno == REFUSES_TEXT_ERRNO
    assert future.done() is True


def test_callbacks(directory: Path, backend: str, make_handle: Any) -> None:
    """Each is called once, with the future, whenever it was added."""
    slow = Slow(backend, directory, make_handle)
    called: list[Any] = []
    slow.future.add_done_callback(called.append)
    slow.future.add_done_callback(called.append)
    slow.check()
    until(lambda: len(called) == 2, "the callbacks are called")
    slow.future.add_done_callback(called.append)
    until(lambda: len(called) == 3, "the callback of a future that is done is called")
    assert called == [slow.future] * 3


def test_a_callback_sees_a_future_that_is_done(
    directory: Path, backend: str, make_handle: Any
) -> None:
    handle = make_handle(backend)
    results: list[int] = []
    futures = [
        handle.submit_pwrite(tensor_of(pattern(100 + index)), directory / f"{index}")
        for index in range(100)
    ]
    for future in futures:
        future.add_done_callback(lambda done: results.append(done.result(timeout=0)))
    until(lambda: len(results) == 100, "every callback is called")
    assert sorted(results) == list(range(100, 200))


def test_a_callback_may_submit(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    done = threading.Event()

    def next_write(future: Any) -> None:
        step = path.stat().st_size
        if step == 10:
            done.set()
            return
        handle.submit_pwrite(bytes([step]), path, step).add_done_callback(next_write)

    path.touch()
    handle.submit_pwrite(b"", path).add_done_callback(next_write)
    assert done.wait(timeout=60)
    assert path.read_bytes() == bytes(range(10))


def test_a_callback_that_raises_hurts_nobody(
    directory: Path,
    backend: str,
    make_handle: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    handle = make_handle(backend)
    called: list[Any] = []

    def fails(future: Any) -> None:
        called.append(future)
        raise LookupError("of the callback")

    future = handle.submit_pwrite(tensor_of(pattern(NBYTES)), directory / "file")
    future.add_done_callback(fails)
    future.add_done_callback(called.append)
    until(lambda: len(called) == 2, "the second callback is called")
    assert future.result() == NBYTES
    until(lambda: "of the callback" in caplog.text, "the error is logged")


def test_await_many(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend, intra_op_parallelism=2)

    async def work(index: int) -> int:
        path = directory / f"{index}"
        data = pattern(1000 + index, index)
        moved = await handle.submit_pwrite(tensor_of(data), path)
        back = torch.zeros(len(data), dtype=torch.uint8)
        moved += await handle.submit_pread(back, path)
        assert raw(back) == data
        return int(moved)

    async def main() -> list[int]:
        return await asyncio.gather(*(work(index) for index in range(200)))

    assert asyncio.run(main()) == [2 * (1000 + index) for index in range(200)]
    # Each asyncio.run is a loop of its own: the handle serves the next one too.
    assert asyncio.run(work(7)) == 2014


def test_await_failures(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    bad = refuses_text()

    async def main() -> list[Any]:
        return await asyncio.gather(
            *(_awaited(handle.submit_pwrite(tensor_of(TEXT), bad)) for _ in range(3)),
            _awaited(handle.submit_pwrite(tensor_of(pattern(NBYTES)), directory / "good")),
            return_exceptions=True,
        )

    *failures, good = asyncio.run(main())
    assert [failure.errno for failure in failures] == [REFUSES_TEXT_ERRNO] * 3
    assert good == NBYTES


async def _awaited(future: Any) -> Any:
    return await future


def test_await_what_is_done_and_twice(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)

    async def main() -> None:
        future = handle.submit_pwrite(tensor_of(pattern(NBYTES)), directory / "file")
        future.result()
        assert await future == NBYTES
        assert await future == NBYTES
        shared = handle.submit_pwrite(tensor_of(pattern(NBYTES)), directory / "file")
        first, second = await asyncio.gather(_awaited(shared), _awaited(shared))
        assert first == second == NBYTES

    asyncio.run(main())


def test_the_loop_runs_meanwhile(directory: Path, backend: str, make_handle: Any) -> None:
    slow = Slow(backend, directory, make_handle)

    async def main() -> int:
        waiting = asyncio.ensure_future(_awaited(slow.future))
        turns = 0
        while not waiting.done():
            turns += 1
            await asyncio.sleep(0)
        assert waiting.result() == LONG
        return turns

    assert asyncio.run(main()) > 1
    slow.check()


def test_cancelling_the_task_leaves_the_io_alone(
    directory: Path, backend: str, make_handle: Any
) -> None:
    slow = Slow(backend, directory, make_handle)

    async def main() -> None:
        task = asyncio.ensure_future(_awaited(slow.future))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await slow.future == LONG

    asyncio.run(main())
    slow.check()
    assert slow.handle.sync_pread(slow.buffer[:10], directory / "sparse") == 1


def test_a_loop_that_ends_before_the_io(directory: Path, backend: str, make_handle: Any) -> None:
    slow = Slow(backend, directory, make_handle)

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_awaited(slow.future), timeout=0)

    asyncio.run(main())
    slow.check()


class Unending:
    """A request that is in flight for as long as this is there."""

    def __init__(self) -> None:
        self.told: list[tuple[CompletionChannel, int]] = []

    def done(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        return False

    def result(self) -> int:
        return 0

    def notify(self, channel: CompletionChannel, token: int) -> None:
        self.told.append((channel, token))


def test_a_loop_that_ends_before_the_io_is_freed() -> None:
    """With the descriptor by which it would have learnt of the end."""
    loops: list[weakref.ReferenceType[asyncio.AbstractEventLoop]] = []
    ticket = Unending()

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        tasks = [asyncio.ensure_future(_awaited(aio.IOFuture(ticket))) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()  # the other one is, by the end of the loop

    with counters():
        for _ in range(5):
            asyncio.run(main())
        assert len(ticket.told) == 10
        for channel, token in ticket.told:
            channel.push(token)  # the end, which nobody awaits any more
        ticket.told.clear()
        del channel
        gc.collect()
        assert [loop() for loop in loops] == [None] * 5


def test_nothing_is_left(directory: Path, backend: str) -> None:
    """Neither dropped, nor waited, nor awaited futures keep a descriptor, a thread or memory."""
    data = tensor_of(pattern(NBYTES))

    async def work(handle: Any) -> None:
        await asyncio.gather(
            *(_awaited(handle.submit_pwrite(data, directory / f"{k % 7}")) for k in range(100))
        )

    def use() -> None:
        with aio.aio_handle(backend=backend) as handle:
            before = len(os.listdir("/proc/self/fd"))
            for index in range(100):
                handle.submit_pwrite(data, directory / f"{index % 7}")
                handle.submit_pwrite(data, directory / f"{index % 7}").result()
            called: list[Any] = []
            for _ in range(100):
                handle.submit_pwrite(data, directory / "file").add_done_callback(called.append)
            until(lambda: len(called) == 100, "every callback is called")
            asyncio.run(work(handle))
            futures = [handle.submit_pwrite(data, directory / "file") for _ in range(50)]
            assert [future.result() for future in futures] == [NBYTES] * 50
            # What serves callbacks and event loops is one for all, not one for each future.
            assert len(os.listdir("/proc/self/fd")) <= before + 3

    use()
    with counters():
        use()
