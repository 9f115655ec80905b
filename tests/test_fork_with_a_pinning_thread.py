"""A child forked while another thread pins inherits no held lock (D-08)."""

from __future__ import annotations

import threading

import aio
from support.buffers import locked
from support.forks import expect_child_ok, fork_and

FORKS = 60


def test_each_child_pins() -> None:
    stop = threading.Event()
    failures: list[BaseException] = []
    rounds = 0

    def pin_and_unpin() -> None:
        nonlocal rounds
        pins = aio.pin_handle()
        try:
            while not stop.is_set():
                small, large = locked(pins, 5000), locked(pins, 3 << 20)
                assert pins.is_pinned(small)
                assert pins.free_cpu_locked_tensor(large)
                del small, large
                rounds += 1
        except BaseException as error:
            failures.append(error)

    def child() -> None:
        pins = aio.pin_handle()
        tensor = locked(pins, 5000)
        assert pins.is_pinned(tensor)
        tensor[:] = 1
        assert pins.free_cpu_locked_tensor(tensor)

    thread = threading.Thread(target=pin_and_unpin)
    thread.start()
    try:
        for _ in range(FORKS):
            expect_child_ok(fork_and(child))
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]
    assert rounds > 0
