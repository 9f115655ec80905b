"""Work in threads whose failures fail the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def in_threads(*work: Callable[[], None]) -> None:
    """Run each in a thread of its own; the first failure is raised here."""
    failures: list[BaseException] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """During the block another thread does `work` again and again, at least once."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def repeat() -> None:
        try:
            work()
            while not stop.is_set():
                work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]
