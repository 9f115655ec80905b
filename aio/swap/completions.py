"""A thread that runs what waits for transfers. It sleeps on an eventfd while none completes.

aio.futures has a thread for callbacks that lives while some are pending. A store has operations all
the time, and the start of a thread for each would cost more than a small transfer.
"""

from __future__ import annotations

import itertools
import select
import threading
from collections.abc import Callable

from _deepnvme.io import CompletionChannel
from aio.futures import IOFuture

_STOP = 0


class Completions:
    """Started at its first use; ``stop()`` ends it.

    A daemon: what is in flight when the interpreter ends is driven by the store's close().
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, Callable[[], None]] = {}
        self._tokens = itertools.count(_STOP + 1)
        self._channel: CompletionChannel | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """RuntimeError, or OSError, where it cannot be; said before anything depends on it."""
        with self._lock:
            if self._channel is None:
                self._start()

    def when_done(self, future: IOFuture, call: Callable[[], None]) -> None:
        """``call()`` in the thread once the future is done. It must not raise."""
        token = next(self._tokens)
        with self._lock:
            self._calls[token] = call
            channel = self._channel or self._start()
        future._ticket.notify(channel, token)

    def stop(self, wait: bool) -> None:
        """End the thread, when nothing is awaited any more. Repeating it is harmless."""
        with self._lock:
            channel, self._channel = self._channel, None
            thread, self._thread = self._thread, None
        if channel is None or thread is None:
            return
        channel.push(_STOP)
        if wait and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> CompletionChannel:
        channel = CompletionChannel()
        thread = threading.Thread(
            target=self._run, args=(channel,), name="swap-completions", daemon=True
        )
        thread.start()
        self._channel, self._thread = channel, thread
        return channel

    def _run(self, channel: CompletionChannel) -> None:
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        while True:
            poll.poll()
            for token in channel.take():
                if token == _STOP:
                    return
                with self._lock:
                    call = self._calls.pop(token)
                call()
                del call  # with it the operation, and what that holds
