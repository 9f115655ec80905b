"""One transfer of a handle that ends when the test says, so that nothing has to be waited for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any


@contextmanager
def held_transfer(handle: Any, method: str) -> Iterator[Future[int]]:
    """The next call of ``method`` moves nothing and returns this future; others are as always.

    It ends with the block at the latest, so that a test that fails does not hang.
    """
    transfer: Future[int] = Future()

    def hold(items: Any) -> Future[int]:
        delattr(handle, method)
        return transfer

    setattr(handle, method, hold)
    try:
        yield transfer
    finally:
        if method in vars(handle):
            delattr(handle, method)
        if not transfer.done():
            transfer.set_result(0)
