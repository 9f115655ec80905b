"""Who pins memory: torch (the default) or this library, as DS_PIN_MEMORY_BACKEND says."""

from __future__ import annotations

import os
from typing import Literal

from _deepnvme import pin as _pin

Backend = Literal["torch", "native"]


def selected_backend() -> Backend:
    """The backend for the next pin: DS_PIN_MEMORY_BACKEND as it is now, ``torch`` when unset.

    Raises ValueError for any other value than ``torch`` and ``native``.
    """
    value = os.environ.get("DS_PIN_MEMORY_BACKEND", "")
    match value.strip().lower():
        case "" | "torch":
            return "torch"
        case "native":
            return "native"
    raise ValueError(f"DS_PIN_MEMORY_BACKEND is {value!r}; it must be 'torch' or 'native'")


def require_native() -> None:
    """Raise RuntimeError, with the reason, where this process may not lock a single page."""
    _, limit = _pin.locked_memory()
    page = os.sysconf("SC_PAGE_SIZE")
    if limit is not None and limit < page:
        raise RuntimeError(
            f"the native backend (DS_PIN_MEMORY_BACKEND=native) cannot lock memory here: "
            f"RLIMIT_MEMLOCK is {limit} bytes, and one page is {page}. Raise it (ulimit -l, "
            "docker --ulimit memlock=-1, LimitMEMLOCK= of systemd), or set "
            "DS_PIN_MEMORY_BACKEND=torch"
        )
