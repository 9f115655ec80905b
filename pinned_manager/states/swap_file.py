"""A file of states that nobody else can see.

1. It is created under a name that nothing else has, with O_EXCL.
2. The name is removed at once; the open descriptor alone keeps the file. So nothing can collide
   with it or take it away, and the kernel frees it however the process ends, SIGKILL included.
3. A forked child closes its copy of the descriptor at once, so that it keeps no space.
"""

from __future__ import annotations

import itertools
import os
import secrets
import weakref
from pathlib import Path

from pinned_manager.states.interrupts import deferred_signals

_numbers = itertools.count()
_open_files: weakref.WeakSet[SwapFile] = weakref.WeakSet()


class SwapFile:
    """A file in ``directory`` of this process. It goes with its last reference, or earlier.

    Raises OSError when it cannot be made.
    """

    def __init__(self, directory: Path) -> None:
        # The random part tells processes of different machines and containers apart.
        name = f"deepnvme-states-{os.getpid()}-{next(_numbers)}-{secrets.token_hex(8)}"
        self.path = directory / name
        self.available = _available_bytes(directory)  # before the first byte
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        with deferred_signals():  # an interrupt must not leave the name behind
            self.descriptor = os.open(self.path, flags, 0o600)
            self.close = weakref.finalize(self, os.close, self.descriptor)
            _open_files.add(self)
            try:
                os.unlink(self.path)
            except OSError:
                self.close()
                raise


def _available_bytes(directory: Path) -> int:
    """Bytes that this user may still write in ``directory``."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def _close_in_child() -> None:
    for file in list(_open_files):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)
