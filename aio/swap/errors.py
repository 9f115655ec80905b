"""What can go wrong in a store, besides a failed transfer (AioError)."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence


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


class SwapStepError(OSError):
    """A transfer of states failed in the middle of a step; errno and ``filename`` are the cause's.

    ``operation``: "read" or "write". ``parameters``: whose states it was about, by name, or by
    index where they have none. ``updated`` and ``not_updated``: parameters that are as after the
    step, and as before it, their states too.
    """

    def __init__(
        self,
        operation: str,
        parameters: Sequence[str],
        updated: Sequence[str],
        not_updated: Sequence[str],
        cause: BaseException,
    ) -> None:
        number = getattr(cause, "errno", None) or errno.EIO
        states = "are the old ones" if operation == "read" else "are the new ones, kept in memory"
        super().__init__(
            number,
            f"{operation} of the states of {_shown(parameters)} failed: {cause}. Their states "
            f"{states}. {len(updated)} parameters and their states are as after this step"
            f"{_listed(updated)}, {len(not_updated)} as before it{_listed(not_updated)}. "
            "finish_step() does the rest, or load a checkpoint of model and optimizer",
            getattr(cause, "filename", None),
        )
        self.operation = operation
        self.parameters = list(parameters)
        self.updated = list(updated)
        self.not_updated = list(not_updated)


def _shown(labels: Sequence[str]) -> str:
    more = len(labels) - 4
    return ", ".join(labels[:4]) + (f" and {more} more" if more > 0 else "")


def _listed(labels: Sequence[str]) -> str:
    return f" ({_shown(labels)})" if labels else ""
