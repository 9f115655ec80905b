"""Where a handle's trace goes, and what becomes of errors in writing it."""

from __future__ import annotations

import logging
import os

from _deepnvme import io as _io

_logger = logging.getLogger("aio")

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def trace_path(trace: Path | None) -> Path | None:
    """The argument, else ``DEEPNVME_TRACE`` with %p replaced by the process number, else None.

    An empty path is no trace.
    """
    if trace is None:
        trace = os.environ.get("DEEPNVME_TRACE", "").replace("%p", str(os.getpid()))
    return trace or None


def log_failure(handle: _io.Handle) -> None:
    """Say, once for a trace, that it could not be written. No request fails for that."""
    failure = handle.trace_failure()
    if failure is not None:
        path, error = failure
        _logger.error(
            "trace %s could not be written, events are missing: %s", path, os.strerror(error)
        )
