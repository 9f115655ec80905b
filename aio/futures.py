"""IOFuture: the result of a request, for threads, callbacks and asyncio.

Native threads never run Python. They put a token into a completion channel (an eventfd); an event
loop watches it as it watches a socket, and for callbacks one thread sleeps on it while there are
any to come.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import select
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, Protocol

from _deepnvme.io import CompletionChannel

_logger = logging.getLogger("aio")


class Ticket(Protocol):
    """What a future waits for: native operations, or a transfer of a device tensor."""

    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def result(self) -> int: ...
    def notify(self, channel: CompletionChannel, token: int) -> None: ...


class IOFuture:
    """A request that was started. ``await`` it, or use it as a ``concurrent.futures.Future``.

    It cannot be cancelled: bytes may be moving. It keeps the memory of its request alive until they
    have moved.
    """

    __slots__ = ("__weakref__", "_ticket")

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    def done(self) -> bool:
        """True once every byte has moved, or the request has failed."""
        return self._ticket.done()

    def result(self, timeout: float | None = None) -> int:
        """Bytes moved, after waiting at most ``timeout`` seconds (for ever when None).

        Raises AioError when the request failed, TimeoutError when it is not done in time.
        """
        if not self._ticket.wait(timeout):
            raise TimeoutError(f"the request was not done within {timeout} seconds")
        return self._ticket.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The AioError that result() raises, or None. TimeoutError when it is not done in time."""
        if not self._ticket.wait(timeout):
            raise TimeoutError(f"the request was not done within {timeout} seconds")
        try:
            self._ticket.result()
        except Exception as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[[IOFuture], Any]) -> None:
        """Call ``callback(self)`` once done: at once if it is, else in a thread of the library.

        An exception of the callback is logged. RuntimeError where that thread cannot be started.
        """
        if self.done():
            _call_back(callback, self)
        else:
            _callbacks.add(self, callback)

    def __await__(self) -> Generator[Any, None, int]:
        if not self.done():
            yield from _channel_of(asyncio.get_running_loop()).waiter(self._ticket).__await__()
        return self._ticket.result()

    def __repr__(self) -> str:
        return f"<IOFuture {'done' if self.done() else 'in flight'}>"


def _call_back(callback: Callable[[IOFuture], Any], future: IOFuture) -> None:
    try:
        callback(future)
    except Exception:
        _logger.exception("callback of %r failed", future)


class _LoopChannel:
    """What one event loop awaits now.

    The loop alone keeps it, as one of its readers, since the waiters keep the loop: so it goes, and
    its eventfd, once nothing is awaited any more, or with a loop that ends before.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._channel = CompletionChannel()
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._tokens = itertools.count()
        loop.add_reader(self._channel.fileno(), self._deliver)

    def waiter(self, ticket: Ticket) -> asyncio.Future[None]:
        token = next(self._tokens)
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiters[token] = future
        ticket.notify(self._channel, token)
        return future

    def _deliver(self) -> None:
        for token in self._channel.take():
            future = self._waiters.pop(token)
            if not future.done():  # the task that awaited it may have been cancelled
                future.set_result(None)
        if not self._waiters:
            self._loop.remove_reader(self._channel.fileno())
            del _loop_channels[self._loop]


_loop_channels: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.ReferenceType[_LoopChannel]
] = weakref.WeakKeyDictionary()


def _channel_of(loop: asyncio.AbstractEventLoop) -> _LoopChannel:
    known = _loop_channels.get(loop)
    channel = None if known is None else known()
    if channel is None:
        channel = _LoopChannel(loop)
        _loop_channels[loop] = weakref.ref(channel)
    return channel


class _CallbackThread:
    """Runs callbacks. The thread lives while some are to come; interpreter exit waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[IOFuture, Callable[[IOFuture], Any]]] = {}
        self._tokens = itertools.count()
        self._channel: CompletionChannel | None = None

    def add(self, future: IOFuture, callback: Callable[[IOFuture], Any]) -> None:
        with self._lock:
            if self._channel is None:
                channel = CompletionChannel()
                threading.Thread(target=self._run, args=(channel,), name="aio-callbacks").start()
                self._channel = channel  # only now: a thread may be refused
            token = next(self._tokens)
            self._pending[token] = future, callback
            future._ticket.notify(self._channel, token)

    def _run(self, channel: CompletionChannel) -> None:
        poll = select.poll()  # which, unlike select(), takes descriptors above 1023
        poll.register(channel.fileno(), select.POLLIN)
        while True:
            poll.poll()
            for token in channel.take():
                with self._lock:
                    future, callback = self._pending.pop(token)
                _call_back(callback, future)
            with self._lock:
                if not self._pending:
                    self._channel = None
                    return


_callbacks = _CallbackThread()


def _forget_parents_callbacks() -> None:
    """In a forked child the thread is gone, and the parent's requests never complete."""
    global _callbacks
    _callbacks = _CallbackThread()


os.register_at_fork(after_in_child=_forget_parents_callbacks)
