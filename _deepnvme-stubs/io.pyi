"""Moving bytes between memory and files: engines, the handle, and what waits for its requests.

Buffers are torch CPU tensors of any dtype, shape, stride and offset, objects with the buffer
protocol, or DLPack exporters in host memory. Their elements move as bytes in row-major order,
`nbytes` of them. Files are paths or the descriptors of open files, which stay the caller's. Offsets
and sizes are in bytes. Everything that can wait gives up the GIL, and answers Ctrl-C in the main
thread.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, TypeAlias, TypedDict, type_check_only

from typing_extensions import Never

from .pin import _Memory

_File: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes] | int | OpenFile"
# (buffer, file) or (buffer, file, offset)
_Item: TypeAlias = Sequence[Any]

@type_check_only
class _Pybind11Type(type):
    """The metaclass of pybind11's classes."""

class AioError(OSError):
    """A transfer failed. errno, strerror and filename are as in OSError.

    errno is ENODATA for a read beyond the end of the file, EIO where validation found a difference,
    ECANCELED where the handle was closed before the request could start, else what the kernel said.
    """

    offset: int
    """Byte of the file where the request starts."""
    nbytes: int
    """Bytes asked."""
    nbytes_done: int
    """Bytes that moved before it failed; the rest of the target, file or memory, is undefined."""
    _other_failures: tuple[AioError, ...]

    @property
    def failures(self) -> tuple[AioError, ...]:
        """Every failed operation that this call reports, this one first."""

@type_check_only
class EngineReport(TypedDict):
    """An engine on this machine."""

    name: str
    """"io_uring", "libaio" or "posix"."""
    built: bool
    """Compiled in."""
    usable: bool
    """One could be made just now."""
    reason: str
    """Why not; empty when usable."""

@type_check_only
class FileAlignment(TypedDict):
    """How large requests on a file travel."""

    direct: bool
    """Past the page cache."""
    refused: bool
    """The file system answered that it takes no O_DIRECT."""
    memory: int
    """Bytes that addresses have to divide by to be transferred without a copy."""
    granule: int
    """Bytes of the units that go past the page cache: at least a page and a file-system block."""

@type_check_only
class PathCounts(TypedDict):
    """A count for each way that bytes travel."""

    direct: int
    """Past the page cache, from where they lie."""
    fixed: int
    """The same, through a buffer that is registered with the engine."""
    staged: int
    """Copied through an aligned block."""
    buffered: int
    """Through the page cache."""

@type_check_only
class DirectionCounts(TypedDict):
    """A count for each direction."""

    read: int
    write: int

@type_check_only
class DirectionPathCounts(TypedDict):
    """Counts by direction and path."""

    read: PathCounts
    write: PathCounts

@type_check_only
class LatencySummary(TypedDict):
    """Seconds from submission to completion of transfers; percentiles within about 3 %."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float

@type_check_only
class QueueStats(TypedDict):
    """Transfers that are not over, at this moment."""

    in_flight: int
    """Handed to an engine."""
    waiting: int
    """Of accepted requests, taken by no worker yet."""

@type_check_only
class HandleStats(TypedDict):
    """What a handle has done since it was made."""

    backend: str
    """"io_uring", "libaio" or "posix"."""
    requests: DirectionCounts
    """Requests accepted; one that could not be opened or reads beyond the end is not."""
    failed: int
    """Of those, the ones that failed."""
    in_flight: int
    """Of those, the ones that are not over."""
    bytes: DirectionPathCounts
    """Bytes of transfers that completed."""
    transfers: DirectionPathCounts
    """Transfers that completed: parts of requests of at most block_size bytes."""
    devices: dict[str, DirectionCounts]
    """Bytes by device, "major:minor" as in /sys/dev/block; those of failed requests included.

    A file counts for the device that its file system says (st_dev), a block device for itself. From
    the 64th device of a process on, bytes count under "0:0".
    """
    queue: QueueStats
    staging: int
    """Bytes of memory that aligned blocks are taken from."""
    retries: int
    """Transfers that were tried again: interrupted, refused for the moment, or sent another way."""
    short_transfers: int
    """Transfers that moved fewer bytes than asked; the rest was tried again."""
    direct_refused: int
    """Times that a file was found to take no O_DIRECT after all."""
    latency: LatencySummary

def probe() -> list[EngineReport]:
    """Every engine, best first. Makes and destroys one of each."""

def device_totals() -> dict[str, DirectionCounts]:
    """HandleStats.devices of every handle that this process has made, also of destroyed ones."""

def interpreter_exits() -> None:
    """Called by the thread that ends the interpreter: from now on no other looks for signals.

    Handles that are open then are drained and closed once Python is gone.
    """

def file_alignment(file: _File) -> FileAlignment:
    """How large requests on an existing file travel. AioError when it cannot be read."""

class CompletionChannel(metaclass=_Pybind11Type):
    """An eventfd that becomes readable as operations are done, and their tokens."""

    def __init__(self) -> None: ...
    def fileno(self) -> int:
        """The descriptor, nonblocking. It is closed with the last reference to the channel."""

    def push(self, token: int) -> None:
        """Add a token, from 0 to 2**64 - 1, and make the descriptor readable. Any thread."""

    def take(self) -> list[int]:
        """The tokens since the last call, in order of completion; drains the descriptor."""

class OpenFile(metaclass=_Pybind11Type):
    """A file that a handle has opened, for several requests."""

    def __init__(self, *args: Never, **kwargs: Never) -> None:
        """Raises TypeError: Handle.open makes it."""

    def path(self) -> str:
        """Its path, where it can be had."""

    def fileno(self) -> int:
        """A descriptor of the library's own."""

    def close(self) -> None:
        """Let go of it; requests in flight hold it until they are over."""

class Ticket(metaclass=_Pybind11Type):
    """Operations in flight, one or many: what an IOFuture waits for.

    Handle.submit and submit_many make it. It belongs to the process that made it: done, wait and
    notify raise RuntimeError in a forked child.
    """

    def __init__(self, *args: Never, **kwargs: Never) -> None:
        """Raises TypeError: only a handle makes tickets."""

    def done(self) -> bool:
        """True once every byte has moved, or operations have failed and the others are over."""

    def wait(self, timeout: float | None = None) -> bool:
        """True when done, False after `timeout` seconds (None: no limit)."""

    def result(self) -> int:
        """Bytes moved, once done. Raises AioError when any operation failed."""

    def notify(self, channel: CompletionChannel, token: int) -> None:
        """Push `token` to `channel` once done; at once if it is."""

class Handle(metaclass=_Pybind11Type):
    """The native part of aio.aio_handle: queue, workers, requests that wait() has not counted.

    Methods may be called from any thread. In a forked child `closed` is True and the others raise
    RuntimeError, and so do requests after close().
    """

    def __init__(
        self,
        block_size: int,
        queue_depth: int,
        single_submit: bool,
        overlap_events: bool,
        intra_op_parallelism: int,
        backend: str,
        trace: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None = None,
    ) -> None:
        """Start the workers.

        Arguments:
            block_size: bytes of a transfer, at most; 1 to 2**40.
            queue_depth: transfers in flight, for each worker; 1 to 16384.
            single_submit: one system call for each transfer.
            overlap_events: start transfers as others complete; False: batch after batch.
            intra_op_parallelism: workers; 1 to 256.
            backend: "auto", "io_uring", "libaio" or "posix".
            trace: a file that gets a trace of calls and transfers; None for none.

        Raises ValueError for a value out of its range, RuntimeError with the reason when the engine
        cannot run here or no thread can be had, OSError when the trace cannot be written.
        """

    def synchronous(
        self, buffer: _Memory, file: _File, offset: SupportsIndex, write: bool, validate: bool
    ) -> int:
        """Carry out one request. Returns 1. `validate` compares memory and file afterwards.

        Raises AioError when it fails, TypeError for what is not host memory or not a file name,
        ValueError for an offset that no file has and for a buffer to read into that is read-only or
        whose elements overlap.
        """

    def asynchronous(
        self, buffer: _Memory, file: _File, offset: SupportsIndex, write: bool, validate: bool
    ) -> int:
        """Start one request, which wait() counts. Returns 0.

        Raises like synchronous() for what is known before a byte moves: arguments, a file that
        cannot be opened, a read beyond its end, a disk without room. Waits while the files of
        earlier requests use up what may be open.
        """

    def submit(self, buffer: _Memory, file: _File, offset: SupportsIndex, write: bool) -> Ticket:
        """Start one request, which its ticket counts. Raises like asynchronous()."""

    def submit_many(self, items: Iterable[_Item], write: bool) -> Ticket:
        """Start many requests: items are (buffer, file) or (buffer, file, offset).

        Bad arguments raise before anything has started. A file that cannot be opened fails its own
        operation only. Items that name one path share its descriptors.
        """

    def wait(self) -> int:
        """Wait for what asynchronous() started since the last wait(). Returns how many there were.

        Raises AioError once when some failed. When Ctrl-C interrupts it nothing is forgotten.
        """

    def fsync(self, file: _File) -> None:
        """fsync(2) of a path or of the caller's descriptor. Raises AioError."""

    def open(self, file: _File, offset: int, nbytes: int, write: bool) -> OpenFile:
        """Open a file for several requests within `nbytes` bytes at byte `offset`.

        Raises AioError when it cannot be opened or a read would end beyond it, ValueError for an
        offset that cannot be. Waits while requests in flight hold too many files open.
        """

    def require_usable(self) -> None:
        """Raises RuntimeError in a forked child and after close()."""

    def close(self) -> None:
        """Wait for what was started and end the workers. Repeating it is harmless."""

    @property
    def closed(self) -> bool:
        """True after close(), and in a forked child."""

    @property
    def backend(self) -> str:
        """The engine in use: "io_uring", "libaio" or "posix"."""

    @property
    def number(self) -> int:
        """Of the handles that this process has made, from 1 on; what traces call it by."""

    def trace_failure(self) -> tuple[str, int] | None:
        """The trace's path and the errno that stopped its writing, once; None when all is well."""

    def stats(self) -> HandleStats:
        """Counts since the handle was made; can be asked at any time, also after close()."""
