"""Which I/O engines this machine offers."""

from __future__ import annotations

import os

from _deepnvme import io as _io

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
