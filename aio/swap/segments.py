"""The files of a store in one directory: few and large, their blocks allocated before use."""

from __future__ import annotations

import errno
import os
import threading

from _deepnvme import io as _io
from aio.swap.extents import Extent, ExtentAllocator
from aio.swap.ownership import LOCK_NAME, Namespace

# The first segment; each next one doubles what there is, up to the store's segment_bytes.
FIRST_SEGMENT_BYTES = 64 << 20
LEAST_ALIGNMENT = 4096
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def alignment_of(namespace: Namespace) -> int:
    """Bytes that extents have to divide by, to go past the page cache."""
    granule = _io.file_alignment(namespace.path / LOCK_NAME)["granule"]
    return max(LEAST_ALIGNMENT, granule)


class SegmentFiles:
    """Extents in the files of one directory. May be used by many threads."""

    def __init__(self, namespace: Namespace, segment_bytes: int, alignment: int) -> None:
        self._namespace = namespace
        self._segment_bytes = max(segment_bytes // alignment, 1) * alignment
        self._lock = threading.Lock()
        self._extents = ExtentAllocator(alignment)
        self._paths: list[str] = []

    @property
    def directory(self) -> str:
        """The directory of the namespace."""
        return str(self._namespace.path)

    @property
    def paths(self) -> list[str]:
        """The files, by number of segment."""
        return self._paths

    @property
    def allocated_bytes(self) -> int:
        """In extents that hold something, or are being written."""
        with self._lock:
            return self._extents.allocated_bytes

    @property
    def file_bytes(self) -> int:
        """Of the files."""
        with self._lock:
            return self._extents.total_bytes

    def available(self) -> int:
        """Bytes in free extents and on the file system."""
        space = os.statvfs(self._namespace.path)
        with self._lock:
            return self._extents.free_bytes + space.f_bavail * space.f_frsize

    def allocate(self, nbytes: int) -> list[Extent] | None:
        """Extents that together have that size, one if possible; None, and nothing is taken, where
        there is no room. OSError when a file cannot be made.
        """
        taken: list[Extent] = []
        with self._lock:
            try:
                while nbytes:
                    piece = min(nbytes, self._segment_bytes)
                    found = self._allocate_piece(piece)
                    if found is None:
                        break
                    taken += found
                    nbytes -= piece
            finally:
                if nbytes:
                    for extent in taken:
                        self._extents.free(extent)
        return None if nbytes else taken

    def free(self, extents: list[Extent]) -> None:
        """Give extents back; their bytes may be overwritten from now on."""
        with self._lock:
            for extent in extents:
                self._extents.free(extent)

    def _allocate_piece(self, nbytes: int) -> list[Extent] | None:
        whole = self._extents.allocate(nbytes)
        if whole is None and self._grow(nbytes):
            whole = self._extents.allocate(nbytes)
        if whole is not None:
            return [whole]
        missing = nbytes - self._extents.free_bytes
        if missing > 0 and not self._make_segment(missing):
            return None
        return self._extents.allocate_scattered(nbytes)

    def _grow(self, at_least: int) -> bool:
        wanted = max(self._extents.total_bytes, FIRST_SEGMENT_BYTES, at_least)
        wanted = min(wanted, self._segment_bytes)
        return self._make_segment(wanted) or (at_least < wanted and self._make_segment(at_least))

    def _make_segment(self, nbytes: int) -> bool:
        path = self._namespace.path / f"segment-{self._extents.segments:06d}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        whole = False
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            whole = True
        except OSError as error:
            if error.errno in _NO_ROOM:
                return False
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            os.close(descriptor)
            if not whole:  # Ctrl-C, too: the next segment gets this name
                path.unlink()
        self._paths.append(str(path))
        self._extents.add_segment(nbytes)
        return True
