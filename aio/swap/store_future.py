"""Operations of a store: steps that wait for one another, and the future that a caller gets.

An operation is a generator. It yields what it waits for (transfers, other operations, work in a
thread) and returns its result. Whoever notices first that the wait is over runs its next step: the
thread that calls back, or one that waits for the result, so that neither depends on the other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # Python 3.10 has its own
from functools import partial
from typing import Any

from _deepnvme.io import CompletionChannel
from aio.futures import IOFuture
from aio.swap.completions import Completions
from pinned_manager.states.interrupts import deferred_signals

Steps = Generator["Awaited", None, Any]
Settled = Callable[["Operation", BaseException | None], None]


class Operation:
    """Runs a generator to its end."""

    def __init__(self, steps: Steps, settled: Settled, completions: Completions) -> None:
        """``settled(operation, error)`` is called once, in the thread of the last step, before the
        result is seen.
        """
        self._steps = steps
        self._settled = settled
        self._completions = completions
        self._lock = threading.Lock()
        self._awaited: Awaited | None = None
        self._ended = False
        self._outcome: Future[Any] = Future()

    def advance(self) -> None:
        """Run the steps whose wait is over, and those of operations that wait for this one.

        They take turns instead of calling each other: a chain of them may be long. Ctrl-C waits for
        a step, which would be lost half way, and whoever waits for it with it.
        """
        with deferred_signals():
            self._advance()

    def _advance(self) -> None:
        turns: deque[Operation] | None = getattr(_this_thread, "turns", None)
        if turns is not None:
            turns.append(self)
            return
        _this_thread.turns = turns = deque([self])
        interruption: BaseException | None = None
        try:
            while turns:
                try:
                    turns.popleft()._run()
                except BaseException as error:  # not of those that come after it
                    interruption = interruption or error
        finally:
            _this_thread.turns = None
        if interruption is not None:
            try:
                raise interruption
            finally:
                del interruption  # its traceback refers to this frame

    def _run(self) -> None:
        while True:
            with self._lock:
                awaited = self._awaited
                if self._ended or (awaited is not None and not awaited.done()):
                    return
                publish = self._step()
                awaited = self._awaited
            if publish is not None:
                publish()
                error = self._outcome.exception()
                if error is not None and not isinstance(error, Exception):
                    raise error  # KeyboardInterrupt is also for whoever runs this step
                return
            if isinstance(awaited, IOFuture) and not awaited.done():
                self._completions.when_done(awaited, self.advance)
                return
            if awaited is not None and not awaited.done():
                awaited.add_done_callback(lambda _: self.advance())
                return

    def _step(self) -> Callable[[], None] | None:
        """One step; at the end, what publishes the outcome."""
        failure: BaseException | None = None
        result = None
        try:
            self._awaited = next(self._steps)
            return None
        except StopIteration as stop:
            result = stop.value
        except BaseException as error:
            # Its frames would keep buffers alive as long as the error, which says enough itself.
            failure = error.with_traceback(None) if isinstance(error, OSError) else error
        self._ended = True
        self._awaited = None
        try:
            self._settled(self, failure)
            if failure is None:
                return partial(self._outcome.set_result, result)
            return partial(self._outcome.set_exception, failure)
        finally:
            del failure

    # ---- what a future asks: see aio.futures.Ticket ----

    def done(self) -> bool:
        return self._outcome.done()

    def wait(self, timeout: float | None = None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._outcome.done():
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            first = self._first_of_chain()
            awaited = first._awaited
            # Where nothing is awaited, another thread is in a step, and advance() waits for it.
            if not _wait_for(first._outcome if first._ended else awaited, left):
                return False
            first.advance()
        return True

    def _first_of_chain(self) -> Operation:
        """The one of those that wait for one another which waits for something else."""
        first = self
        while isinstance(awaited := first._awaited, Operation) and not awaited.done():
            first = awaited
        return first

    def failed(self) -> bool:
        """False while it is not over."""
        return self.done() and self.exception() is not None

    def result(self) -> Any:
        return self._outcome.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What made it fail, or None."""
        return self._outcome.exception(timeout)

    def notify(self, channel: CompletionChannel, token: int) -> None:
        self._outcome.add_done_callback(lambda _: channel.push(token))

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """In the thread that ends it, or at once."""
        self._outcome.add_done_callback(callback)


Awaited = Operation | IOFuture | Future[Any]


def _wait_for(awaited: Awaited | None, timeout: float | None) -> bool:
    if awaited is None or awaited.done():
        return True
    try:
        awaited.exception(timeout)
    except (TimeoutError, FutureTimeoutError):
        return False
    return True


_this_thread = threading.local()


class StoreFuture(IOFuture):
    """An operation of a store that was started. ``await`` it, or use it as a
    ``concurrent.futures.Future``.

    It cannot be cancelled. Dropping it does not keep the operation from being carried out.
    """

    __slots__ = ()

    _ticket: Operation

    def result(self, timeout: float | None = None) -> Any:
        """What the operation is for, after waiting at most ``timeout`` seconds (for ever if None).

        Raises what made it fail (AioError, ChecksumError, SwapError), TimeoutError when it is not
        done in time.
        """
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What result() raises, or None. TimeoutError when it is not done in time."""
        if not self._ticket.wait(timeout):
            raise TimeoutError(f"the operation was not done within {timeout} seconds")
        return self._ticket.exception()

    def __repr__(self) -> str:
        return f"<StoreFuture {'done' if self.done() else 'in flight'}>"
