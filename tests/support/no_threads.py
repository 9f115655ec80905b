"""A process that may start no more threads, as under RLIMIT_NPROC or a control group's pids.max."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

REFUSED = "can't start new thread"


@contextmanager
def no_threads() -> Iterator[None]:
    """Within it every start of a thread fails as Python lets it fail."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError(REFUSED)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield
