"""Which I/O engines this machine offers."""

from __future__ import annotations

import logging
import os

from _deepnvme import io as _io
from aio.options import HandleOptions
from aio.tracing import Path

_logger = logging.getLogger("aio")

BACKENDS = ("auto", "io_uring", "libaio", "posix")


def available_backends() -> list[str]:
    """Names of the engines that work here, best first: any of "io_uring", "libaio" and "posix"."""
    return [report["name"] for report in _io.probe() if report["usable"]]


def backend_name(backend: str | None) -> str:
    """The argument, else ``DEEPNVME_BACKEND``, else "auto".

    ValueError for a name that there is not.
    """
    source = "backend"
    if backend is None:
        source, backend = "DEEPNVME_BACKEND", os.environ.get("DEEPNVME_BACKEND") or "auto"
    if backend not in BACKENDS:
        raise ValueError(f"{source} is {backend!r}, but must be one of {', '.join(BACKENDS)}")
    return backend


def new_core(options: HandleOptions, backend: str | None, trace: Path | None) -> _io.Handle:
    """What an aio_handle does its work with.

    ``options.backend`` is a profile's suggestion: ``backend`` and ``DEEPNVME_BACKEND`` go before
    it, and where it cannot run here, "auto" takes its place and that is logged. Raises as
    aio_handle does.
    """
    values = options.as_dict()
    suggested = values.pop("backend")
    name = backend_name(backend)
    if backend is not None or os.environ.get("DEEPNVME_BACKEND") or suggested == "auto":
        return _io.Handle(**values, backend=name, trace=trace)
    try:
        return _io.Handle(**values, backend=backend_name(suggested), trace=trace)
    except RuntimeError as error:
        _logger.warning("the profile's backend is not used: %s", error)
        return _io.Handle(**values, backend=name, trace=trace)
