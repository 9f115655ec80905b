"""Whether a call lets other Python threads run: the interpreter never takes the GIL away here."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

TRIES = 200
NEVER_S = 1000.0


@contextmanager
def thread_that_counts() -> Iterator[Callable[[], int]]:
    """A thread that counts whenever it gets the GIL, which it gets only when others give it up."""
    count = 0
    stop = False

    def run() -> None:
        nonlocal count
        while not stop:
            count += 1
            time.sleep(0)  # gives the GIL up

    interval = sys.getswitchinterval()
    sys.setswitchinterval(NEVER_S)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: count
    finally:
        stop = True
        thread.join()
        sys.setswitchinterval(interval)


def expect_gil_released(call: Callable[[], None], prepare: Callable[[], None]) -> None:
    """Of some tries of `prepare(); call()`, another thread runs during a `call`."""
    with thread_that_counts() as counted:
        for _ in range(TRIES):
            prepare()
            before = counted()
            call()
            if counted() != before:
                return
    pytest.fail(f"no other thread ran during any of {TRIES} calls")
