"""One handle made, used at once and destroyed in different threads (C-10)."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

import aio
import support.torch_threads  # noqa: F401
from support.buffers import pattern, raw, tensor_of
from support.counters import counters
from support.threads import in_threads

ROUNDS = 30
NBYTES = 70_001


@pytest.mark.parametrize("parallelism", [1, 3])
def test_made_in_a_used_in_b_and_c_destroyed_in_d(
    directory: Path, backend: str, parallelism: int
) -> None:
    box: list[aio.aio_handle] = []

    def make() -> None:
        box.append(aio.aio_handle(backend=backend, intra_op_parallelism=parallelism))

    def use(name: str) -> None:
        handle = box[0]
        for index in range(ROUNDS):
            data = pattern(NBYTES, index)
            path = directory / name
            assert handle.sync_pwrite(tensor_of(data), path, 3 * index) == 1
            back = torch.zeros(NBYTES, dtype=torch.uint8)
            future = handle.submit_pread(back, path, 3 * index)
            assert future.result() == NBYTES
            assert raw(back) == data

    with counters():
        in_threads(make)
        in_threads(lambda: use("b"), lambda: use("c"))
        assert box[0].wait() == 0
        in_threads(lambda: box.pop().close())


def test_the_last_reference_goes_in_another_thread(directory: Path, backend: str) -> None:
    with counters():
        box = [aio.aio_handle(backend=backend)]
        box[0].async_pwrite(tensor_of(pattern(NBYTES)), directory / "file")
        in_threads(box.clear)
        gc.collect()
        assert (directory / "file").read_bytes() == pattern(NBYTES)


def test_waits_share_what_is_pending(directory: Path, backend: str) -> None:
    """Concurrent waits count every operation once between them."""
    with aio.aio_handle(backend=backend) as handle:
        counts: list[int] = []

        def work(number: int) -> None:
            for index in range(ROUNDS):
                handle.async_pwrite(tensor_of(pattern(NBYTES)), directory / f"{number}.{index}")
                if index % 7 == 0:
                    counts.append(handle.wait())

        in_threads(*[partial(work, number) for number in range(3)])
        counts.append(handle.wait())
        assert sum(counts) == 3 * ROUNDS
        for number in range(3):
            for index in range(ROUNDS):
                assert (directory / f"{number}.{index}").read_bytes() == pattern(NBYTES)


def test_close_while_others_submit(directory: Path, backend: str) -> None:
    """Whoever is too late is told so, at once or by wait(); whatever else was accepted is whole."""
    handle = aio.aio_handle(backend=backend)
    accepted: list[Path] = []
    too_late: list[str] = []
    under_way = threading.Event()

    def submit() -> None:
        for index in range(1_000_000):
            path = directory / f"{index % 50}"
            handle.async_pwrite(tensor_of(pattern(NBYTES, index)), path)
            accepted.append(path)
            if index == 10:
                under_way.set()
            if index % 50 == 49:
                handle.wait()
                accepted.clear()

    def submit_until_closed() -> None:
        try:
            submit()
        except aio.AioError as error:
            too_late.extend(str(failure.filename) for failure in error.failures)
        except RuntimeError as error:
            if "closed" not in str(error):
                raise

    def close() -> None:
        under_way.wait()
        handle.close()

    in_threads(submit_until_closed, close)
    with suppress(RuntimeError):
        try:
            handle.wait()
        except aio.AioError as error:
            too_late += [str(failure.filename) for failure in error.failures]
    for path in accepted:
        if str(path) not in too_late:
            assert len(path.read_bytes()) == NBYTES
