"""The handles of the process while they live, and what waits for them at exit."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from _deepnvme import io as _io
from _deepnvme.io import AioError
from aio.tracing import log_failure

if TYPE_CHECKING:
    from aio.handle import aio_handle

_logger = logging.getLogger("aio")

_living: weakref.WeakValueDictionary[int, aio_handle] = weakref.WeakValueDictionary()


def add_handle(handle: aio_handle) -> None:
    """From now on, until it is dropped."""
    _living[handle._core.number] = handle


def living_handles() -> list[aio_handle]:
    """Those of the process, oldest first, also closed ones."""
    # valuerefs() is one step under the GIL: other threads make handles meanwhile.
    found = [reference() for reference in _living.valuerefs()]
    return sorted((one for one in found if one is not None), key=lambda one: one._core.number)


def quietly(handle: aio_handle, call: Callable[[], object]) -> None:
    """Wait where nobody can catch an exception: what failed is logged."""
    if handle._process != os.getpid():
        return  # a forked child leaves its parent's handle alone
    try:
        call()
    except AioError as error:
        _logger.error(
            "%r: %d operations failed unnoticed; first: %s", handle, len(error.failures), error
        )
    except Exception as error:  # of a device: other handles are still to be waited for
        _logger.error("%r: an operation failed unnoticed: %s", handle, error, exc_info=error)


@atexit.register
def _wait_for_all() -> None:
    """Log what failed unnoticed. Native code closes handles, once no thread can be inside one."""
    _io.interpreter_exits()
    for handle in living_handles():
        quietly(handle, handle.wait)
        if not handle.closed:
            log_failure(handle._core)
