"""Signal handlers that wait until a step is done which must not be left half done."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# What the module signal wraps: that makes an enum of each number, which takes fifty times as long.
_native: Any = importlib.import_module("_signal")
_NUMBERS = tuple(map(int, signal.valid_signals()))


class Deferred:
    """The signals that have arrived meanwhile."""

    def __init__(self) -> None:
        self.handlers: dict[int, Callable[..., Any]] = {}
        self._arrived: list[tuple[int, Any]] = []

    def note(self, number: int, frame: Any) -> None:
        """Take the place of a handler."""
        self._arrived.append((number, frame))

    def run(self) -> None:
        """Call the handlers whose signals have arrived. What they raise is raised here."""
        raised: BaseException | None = None
        while self._arrived:
            number, frame = self._arrived.pop(0)
            try:
                self.handlers[number](number, frame)
            except BaseException as error:  # the others are still to be called
                error.__context__ = error.__context__ or raised
                raised = error
        if raised is not None:
            raise raised

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Within it, signals raise as always: for a wait, which may be long."""
        try:
            for number, handler in self.handlers.items():
                _native.signal(number, handler)
            self.run()
            yield
        finally:
            for number in self.handlers:
                _native.signal(number, self.note)


@contextmanager
def deferred_signals() -> Iterator[Deferred]:
    """Within it, no signal raises: handlers run in ``run()`` and at its end.

    Python runs handlers in its main thread only, so elsewhere there is nothing to do.
    """
    deferred = Deferred()
    if threading.current_thread() is not threading.main_thread():
        yield deferred
        return
    try:
        for number in _NUMBERS:
            handler = _native.getsignal(number)
            if callable(handler):
                deferred.handlers[number] = handler
                _native.signal(number, deferred.note)
        yield deferred
    finally:
        for number, handler in deferred.handlers.items():
            _native.signal(number, handler)
        deferred.run()
