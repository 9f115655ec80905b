"""Threads for what takes a processor or blocks: checksums and fsync."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

THREADS = 2


class Background:
    """Started at its first use; ``stop()`` ends it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """``work(*arguments)`` in one of the threads."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, "swap-store")
            threads = self._threads
        task = _Task(partial(work, *arguments))
        try:
            threads.submit(task.run)
        except RuntimeError:  # the interpreter ends, or no thread can be started: do it here
            task.run()
        return task.outcome

    def stop(self, wait: bool) -> None:
        """End the threads. Nobody submits any more."""
        with self._lock:
            threads = self._threads
        if threads is not None:
            threads.shutdown(wait)


class _Task:
    """Work that is done once. An executor that cannot start a thread raises, but keeps the work
    until it can: by then the data may be others.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self.outcome: Future[Any] = Future()
        self._lock = threading.Lock()
        self._work: Callable[[], Any] | None = work

    def run(self) -> None:
        with self._lock:
            work, self._work = self._work, None
        if work is None:
            return
        try:
            self.outcome.set_result(work())
        except BaseException as error:
            self.outcome.set_exception(error)
            del self, work  # the error's traceback refers to this frame
