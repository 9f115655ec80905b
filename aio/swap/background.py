"""Threads for what takes a processor or blocks: checksums and fsync."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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
        try:
            return threads.submit(work, *arguments)
        except RuntimeError:  # the interpreter ends and takes no more work: do it here
            done: Future[Any] = Future()
            try:
                done.set_result(work(*arguments))
            except Exception as error:
                done.set_exception(error)
            return done

    def stop(self, wait: bool) -> None:
        """End the threads. Nobody submits any more."""
        with self._lock:
            threads = self._threads
        if threads is not None:
            threads.shutdown(wait)
