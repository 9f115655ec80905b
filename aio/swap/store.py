"""SwapStore: named groups of tensors in a few large files."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from aio.handle import aio_handle
from aio.profiled_handle import handle_for
from aio.swap.checksum import Checksums
from aio.swap.core import StoreCore
from aio.swap.directories import Directories, check_bandwidths, measure
from aio.swap.layout import Tensors
from aio.swap.ownership import Namespace, check_name, reclaim_leftovers
from aio.swap.segments import SegmentFiles, alignment_of
from aio.swap.store_future import StoreFuture
from aio.swap.store_stats import StoreStats

Directory = str | os.PathLike[str]


class SwapStore:
    """Groups of tensors on drives, for as long as the process lives.

    Arguments:
        directories: one, or several that are used at once, each on a drive of its own; missing ones
            are made. The store makes a directory of its own in each, which nobody else uses, and
            which goes with the store.
        handle: what moves the bytes; it stays the caller's. None makes one, with the profile that
            ds_nvme_tune has saved for the directories, if it has.
        name: how those directories' names begin. What dead processes have left under this name is
            deleted; what living ones use, and anything else, is not touched.
        bandwidths: bytes per second of each directory, or any numbers in proportion; None measures
            them where there are several (64 MiB of traffic on each).
        checksum: None, "xxh3" (package xxhash) or "crc32c" (package crc32c), kept in memory and
            compared at every read.
        segment_bytes: size of a file; files are allocated whole, and kept until close().

    Raises ValueError and TypeError for arguments, ImportError where the checksum's package is not
    installed, OSError for a directory that cannot be used.

    Every method may be called from any thread. Operations on one name take effect in the order of
    the calls. A store is of the process that made it: in a forked child its methods raise
    RuntimeError, and nothing is deleted there. ``with``, close(), dropping the last reference and
    the end of the interpreter wait for what was started and delete the files.
    """

    def __init__(
        self,
        directories: Directory | Sequence[Directory],
        handle: aio_handle | None = None,
        *,
        name: str = "swap",
        bandwidths: Sequence[float] | None = None,
        checksum: str | None = None,
        segment_bytes: int = 1 << 30,
    ) -> None:
        places = _places(directories)
        check_name(name)
        weights = None if bandwidths is None else check_bandwidths(bandwidths, len(places))
        if operator.index(segment_bytes) < 1:
            raise ValueError(f"segment_bytes is {segment_bytes}, but must be at least 1")
        checksums = None if checksum is None else Checksums(checksum)
        owned: list[Namespace] = []
        own_handle = None
        with ExitStack() as undo:
            for place in places:
                place.mkdir(parents=True, exist_ok=True)
                reclaim_leftovers(place, name)
                owned.append(Namespace.make(place, name))
                undo.callback(owned[-1].remove)
            alignment = max(map(alignment_of, owned))
            segments = [SegmentFiles(space, segment_bytes, alignment) for space in owned]
            if handle is None:
                handle = own_handle = handle_for(places)
                undo.callback(own_handle.close)
            if weights is None:
                weights = measure(handle, segments) if len(segments) > 1 else [1.0]
            self._core = StoreCore(
                handle,
                Directories(segments, weights, alignment),
                checksums,
                alignment,
                owned,
                own_handle,
            )
            undo.pop_all()
        weakref.finalize(self, self._core.abandon).atexit = False

    def put(self, name: str, tensors: Tensors, *, in_place: bool = False) -> StoreFuture:
        """Start to write a group; the future's result is its bytes. The tensors must not be changed
        until then.

        ``name`` is any string. ``tensors`` is a sequence or a mapping of tensors of any dtype,
        shape and stride, on the host or on a device; those that are not dense are copied first.

        The new content replaces the old one when all of it is written; until then, and after a
        failure, the old one stays. ``in_place=True`` writes over the old content, if it has the
        same layout: it needs no second room, but after a failure there is neither, and get() raises
        SwapError until the next put.

        Raises SwapFullError (an OSError with ENOSPC) when there is no room, TypeError for what is
        not tensors; nothing has changed then. The future raises AioError.
        """
        return self._core.put(name, tensors, in_place)

    def get(self, name: str, out: Tensors | None = None) -> StoreFuture:
        """Start to read a group; the future's result is the tensors, in the kind of container that
        was put: dict, list or tuple.

        They are new and pinned (ordinary memory where no more can be locked), or ``out``, filled:
        the same names or number of tensors, of the same shapes and dtypes. What prefetch() has read
        is taken.

        Raises KeyError for a name that was not put, and TypeError or ValueError when ``out`` does
        not match, before any I/O. The future raises AioError or ChecksumError; ``out`` is undefined
        then.
        """
        return self._core.get(name, out)

    def prefetch(self, name: str) -> StoreFuture:
        """Start to read a group into pinned memory of the store, for the next get(); the future's
        result is its bytes.

        It is held until that get(), a put() or a delete() of the name, or close(). KeyError for a
        name that was not put.
        """
        return self._core.prefetch(name)

    def delete(self, name: str) -> None:
        """Forget a group. Reads that were started get it still; then its room is used again.

        KeyError for a name that was not put.
        """
        self._core.delete(name)

    def flush(self) -> StoreFuture:
        """Start to make durable what was put before: fsync(2) of every file, once it is written.

        The future raises AioError when that fails. Failures of puts are those puts' own.
        """
        return self._core.flush()

    def names(self) -> list[str]:
        """What was put and not deleted, in the order of the first put."""
        return self._core.names()

    def nbytes(self, name: str) -> int:
        """Bytes of a group's tensors. KeyError for a name that was not put."""
        return self._core.nbytes(name)

    def __contains__(self, name: object) -> bool:
        return name in self._core.names()

    def __len__(self) -> int:
        return len(self._core.names())

    def stats(self) -> StoreStats:
        """What the store holds and has done, in bytes and operations."""
        return self._core.stats()

    @property
    def closed(self) -> bool:
        """True after close(), and in a forked child."""
        return self._core.closed

    def close(self) -> None:
        """Wait for what was started, and delete the files. Later calls raise RuntimeError.

        Raises OSError when they cannot be deleted. Repeating it is harmless.
        """
        self._core.close()

    def __enter__(self) -> SwapStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} names"
        return f"<SwapStore {state} in {', '.join(self._core.directories)}>"


def _places(directories: Any) -> list[Path]:
    one = isinstance(directories, (str, bytes, os.PathLike))
    given = [directories] if one else list(directories)
    if not given:
        raise ValueError("directories is empty, but a store needs at least one")
    paths = [Path(os.path.abspath(os.fsdecode(directory))) for directory in given]
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise ValueError(f"directories names one twice: {', '.join(map(str, paths))}")
    return paths
