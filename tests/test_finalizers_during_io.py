"""Buffers whose last reference goes in flight: their finalizers run, and nothing hangs (C-05)."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.buffers import pattern
from support.child import run_child
from support.counters import until

ROUNDS = 100
NBYTES = 20_000


class Buffer(bytearray):
    """Python runs when it goes."""

    gone: list[int]
    number: int

    def __del__(self) -> None:
        self.gone.append(self.number)


class Tensor(torch.Tensor):
    pass


@pytest.fixture(params=[1e-6, 0.005, 60.0])
def switch_interval(request: pytest.FixtureRequest) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.usefixtures("switch_interval")
def test_buffers_are_let_go_once(tmpfs: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend, intra_op_parallelism=2)
    gone: list[int] = []

    def work(thread: int) -> None:
        for index in range(thread * ROUNDS, (thread + 1) * ROUNDS):
            buffer = Buffer(pattern(NBYTES, index))
            buffer.gone, buffer.number = gone, index
            if index % 2:
                handle.async_pwrite(buffer, tmpfs / f"{index}")
            else:
                handle.sync_pwrite(buffer, tmpfs / f"{index}")
            del buffer
            if index % 10 == 9:
                handle.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handle.wait()
    until(lambda: len(gone) == 2 * ROUNDS, "every buffer is let go")
    assert sorted(gone) == list(range(2 * ROUNDS))
    for index in range(2 * ROUNDS):
        assert (tmpfs / f"{index}").read_bytes() == pattern(NBYTES, index)


def test_finalizers_that_use_the_handle(tmpfs: Path, backend: str, make_handle: Any) -> None:
    """A finalizer may make requests of its own: no lock is held while it runs."""
    handle = make_handle(backend)
    late: list[int] = []

    def finalizer(index: int) -> None:
        late.append(handle.sync_pwrite(torch.ones(10), tmpfs / f"late{index}"))

    for index in range(ROUNDS):
        tensor = torch.full((NBYTES,), index % 251, dtype=torch.uint8).as_subclass(Tensor)
        weakref.finalize(tensor, finalizer, index)
        handle.async_pwrite(tensor, tmpfs / f"{index}")
        del tensor
        gc.collect(0)
    assert handle.wait() == ROUNDS
    gc.collect()
    until(lambda: len(late) == ROUNDS, "every finalizer runs")
    assert late == [1] * ROUNDS
    for index in range(ROUNDS):
        assert (tmpfs / f"{index}").read_bytes() == bytes([index % 251]) * NBYTES


FIRST_WRITES = """
import sys, threading
import torch, aio
backend, folder = sys.argv[1:]
start = threading.Barrier(8)
failed = []

def write(number):
    try:
        start.wait()
        handle = aio.aio_handle(backend=backend)
        handle.sync_pwrite(torch.full((5000,), number, dtype=torch.uint8), f"{folder}/{number}")
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed, failed
"""


def test_the_first_writes_of_a_process_race(disk: Path, backend: str) -> None:
    done = run_child(FIRST_WRITES, backend, disk)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for number in range(8):
        assert (disk / f"{number}").read_bytes() == bytes([number]) * 5000
