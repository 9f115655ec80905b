"""What can go wrong in a store, besides a failed transfer (AioError)."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping


class SwapError(RuntimeError):
    """What was stored under a name can no longer be had: an overwrite in place has failed."""


class SwapFullError(OSError):
    """No directory has room for a group; errno is ENOSPC and nothing has changed.

    ``needed``: bytes, rounded up to the alignment; ``available``: bytes for each directory, in
    free extents of the store and on the file system.
    """

    def __init__(self, name: str, needed: int, available: Mapping[str, int]) -> None:
        places = ", ".join(f"{path}: {nbytes} bytes" for path, nbytes in available.items())
        super().__init__(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)}: {name!r} needs {needed} bytes, available are {places}; "
            "delete names, make room or add a directory",
        )
        self.needed = needed
        self.available = dict(available)


class ChecksumError(OSError):
    """Bytes read are not the bytes written; errno is EBADMSG, as file systems answer.

    ``filename``, ``offset`` and ``nbytes`` say which part of which file; ``expected`` and
    ``actual`` are the checksums.
    """

    def __init__(
        self, filename: str, offset: int, nbytes: int, expected: int, actual: int, kind: str
    ) -> None:
        super().__init__(
            errno.EBADMSG,
            f"{kind} of {nbytes} bytes at offset {offset} is {actual:#x}, but {expected:#x} was "
            "written; the drive, or another program, has changed them",
            filename,
        )
        self.offset = offset
        self.nbytes = nbytes
        self.expected = expected
        self.actual = actual
