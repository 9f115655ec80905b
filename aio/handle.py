"""aio_handle: reads and writes of tensors, one or thousands, waited for or not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from aio.backends import new_core
from aio.device_transfer import DeviceTransfers, has_device_tensor, is_device_tensor
from aio.futures import IOFuture, Ticket
from aio.living_handles import add_handle, quietly
from aio.options import HandleOptions
from aio.pin_handle import LockedTensors
from aio.profiles import Profile, profile_options
from aio.stats_server import serve_if_asked
from aio.tracing import Path, log_failure, trace_path
from pinned_manager import free_locked_tensor

if TYPE_CHECKING:
    from _deepnvme.io import HandleStats

# A path, or the descriptor of an open file.
File = str | bytes | os.PathLike[str] | os.PathLike[bytes] | int
# (buffer, file) or (buffer, file, file_offset)
Item = tuple[Any, File] | tuple[Any, File, int]


class aio_handle(LockedTensors):  # DeepSpeed's name
    """A queue of transfers between tensors and files, and the workers that keep it full.

    Arguments:
        block_size: bytes of one transfer, at most; larger requests are split.
        queue_depth: transfers in flight, for each worker.
        single_submit: one system call for each transfer, instead of one for many.
        overlap_events: start transfers as others complete; False starts batch after batch.
        intra_op_parallelism: workers; all requests share them, and large ones use them all.
        backend: "auto", "io_uring", "libaio" or "posix"; None takes ``DEEPNVME_BACKEND``, or
            "auto".
        profile: where options that are None come from: a directory that ds_nvme_tune has looked at,
            a file that it has saved, a dict of options by name, or what find_profile has found.
        trace: a file for a trace of every call and transfer, which chrome://tracing and
            ui.perfetto.dev show; "" for none, None takes ``DEEPNVME_TRACE``.

    What neither an argument nor the profile says is 1048576, 128, False, True, 1, "auto".

    Raises ValueError for a value that cannot be, RuntimeError with the reason when a named engine
    cannot run here, FileNotFoundError for a directory without a profile, and OSError when the trace
    cannot be written.

    Buffers are torch tensors of any dtype, shape, stride and offset, objects with the buffer
    protocol, or host arrays that speak DLPack. Their bytes are moved as they are. Files are opened
    in the call (a missing one raises there), by name or by an open descriptor, which stays the
    caller's; writes create a file with mode 0600 and never truncate it. Failures raise AioError. A
    buffer must not be changed or resized while a request on it is in flight.

    Every method may be called from any thread. A handle is of the process that made it: after fork,
    the child makes its own. ``with`` and close() wait for what was started; so does interpreter
    exit.
    """

    _tag = "aio_handle"

    def __init__(
        self,
        block_size: int | None = None,
        queue_depth: int | None = None,
        single_submit: bool | None = None,
        overlap_events: bool | None = None,
        intra_op_parallelism: int | None = None,
        *,
        backend: str | None = None,
        profile: Profile | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        trace: Path | None = None,
    ) -> None:
        serve_if_asked()
        given = {
            "block_size": block_size,
            "queue_depth": queue_depth,
            "single_submit": single_submit,
            "overlap_events": overlap_events,
            "intra_op_parallelism": intra_op_parallelism,
        }
        values = {} if profile is None else profile_options(profile)
        values.update((name, value) for name, value in given.items() if value is not None)
        options = HandleOptions(**values)
        self._core = new_core(options, backend, trace_path(trace))
        self._block_size = options.block_size
        self._queue_depth = options.queue_depth
        self._single_submit = bool(options.single_submit)
        self._overlap_events = bool(options.overlap_events)
        self._intra_op_parallelism = options.intra_op_parallelism
        self._process = os.getpid()
        self._devices = DeviceTransfers(self._core)
        add_handle(self)

    # ---- options ----

    def get_block_size(self) -> int:
        """Bytes of one transfer, at most."""
        return self._block_size

    def get_queue_depth(self) -> int:
        """Transfers in flight, for each worker."""
        return self._queue_depth

    def get_single_submit(self) -> bool:
        """Whether each transfer is submitted by a system call of its own."""
        return self._single_submit

    def get_overlap_events(self) -> bool:
        """Whether transfers start as others complete."""
        return self._overlap_events

    def get_intra_op_parallelism(self) -> int:
        """Workers."""
        return self._intra_op_parallelism

    def get_alignment(self) -> int:
        """Bytes: ``intra_op_parallelism * 512``, as DeepSpeed computes it.

        No size has to divide by it here.
        """
        return self._intra_op_parallelism * 512

    @property
    def backend(self) -> str:
        """The engine in use: "io_uring", "libaio" or "posix"."""
        return self._core.backend

    @property
    def closed(self) -> bool:
        """True after close(), and in a forked child."""
        return self._core.closed

    # ---- page-locked memory: see also LockedTensors ----

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        """True if ``tensor`` starts a pinned region, which is not pinned any more.

        False for anything else. Pages are unlocked once no request uses them. Other references to
        the memory stay valid.
        """
        return free_locked_tensor(tensor)

    # ---- synchronous: wait for this request alone ----

    def sync_pread(self, buffer: Any, filename: File, file_offset: int = 0) -> int:
        """Fill ``buffer`` from byte ``file_offset`` of the file.

        Returns 1, the number of completed operations.
        """
        return self._synchronous(buffer, filename, file_offset, False, False)

    def sync_pwrite(self, buffer: Any, filename: File, file_offset: int = 0) -> int:
        """Write ``buffer`` at byte ``file_offset`` of the file.

        Returns 1, the number of completed operations.
        """
        return self._synchronous(buffer, filename, file_offset, True, False)

    def read(self, buffer: Any, filename: File, validate: bool, file_offset: int = 0) -> int:
        """As sync_pread, but returns 0. ``validate`` compares memory and file afterwards."""
        self._synchronous(buffer, filename, file_offset, False, validate)
        return 0

    def write(self, buffer: Any, filename: File, validate: bool, file_offset: int = 0) -> int:
        """As sync_pwrite, but returns 0. ``validate`` compares memory and file afterwards."""
        self._synchronous(buffer, filename, file_offset, True, validate)
        return 0

    # ---- asynchronous: counted by wait() ----

    def async_pread(self, buffer: Any, filename: File, file_offset: int = 0) -> int:
        """Start to fill ``buffer`` from the file. Returns 0; wait() waits for it."""
        return self._asynchronous(buffer, filename, file_offset, False, False)

    def async_pwrite(self, buffer: Any, filename: File, file_offset: int = 0) -> int:
        """Start to write ``buffer`` to the file. Returns 0; wait() waits for it."""
        return self._asynchronous(buffer, filename, file_offset, True, False)

    def pread(self, buffer: Any, filename: File, validate: bool, *args: Any, **kwargs: Any) -> int:
        """pread(buffer, filename, validate, async, file_offset=0): async_pread or sync_pread.

        Returns 0 if ``async`` (a keyword of Python: pass it by position), else 1. ``validate``
        compares memory and file afterwards; a difference is an AioError.
        """
        return self._either(buffer, filename, validate, False, args, kwargs)

    def pwrite(self, buffer: Any, filename: File, validate: bool, *args: Any, **kwargs: Any) -> int:
        """pwrite(buffer, filename, validate, async, file_offset=0): async_pwrite or sync_pwrite.

        Returns 0 if ``async`` (a keyword of Python: pass it by position), else 1. ``validate``
        compares memory and file afterwards; a difference is an AioError.
        """
        return self._either(buffer, filename, validate, True, args, kwargs)

    def wait(self) -> int:
        """Wait for every asynchronous operation that no wait() has counted yet.

        Returns how many there were. 0 when there was none. Raises AioError once when some failed;
        its ``failures`` lists them all, and the others have completed. Ctrl-C raises
        KeyboardInterrupt and loses nothing: wait() can be called again. Futures are not counted
        here: they have results of their own.
        """
        return self._devices.wait(self._core.wait)

    # ---- futures ----

    def submit_pread(self, buffer: Any, filename: File, file_offset: int = 0) -> IOFuture:
        """Start to fill ``buffer`` from the file; the future's result is the number of bytes."""
        return self._submit(buffer, filename, file_offset, False)

    def submit_pwrite(self, buffer: Any, filename: File, file_offset: int = 0) -> IOFuture:
        """Start to write ``buffer`` to the file; the future's result is the number of bytes."""
        return self._submit(buffer, filename, file_offset, True)

    # ---- many at once ----

    def pread_many(self, items: Iterable[Item]) -> int:
        """Fill many buffers: items are (buffer, filename) or (buffer, filename, file_offset).

        Returns the number of operations once all are done. A failure does not keep the others from
        completing; then one AioError lists all failures.
        """
        return self._many(items, False)

    def pwrite_many(self, items: Iterable[Item]) -> int:
        """Write many buffers: items are (buffer, filename) or (buffer, filename, file_offset).

        See pread_many.
        """
        return self._many(items, True)

    def submit_pread_many(self, items: Iterable[Item]) -> IOFuture:
        """pread_many as one future, whose result is the number of bytes."""
        return IOFuture(self._submit_many(items, False))

    def submit_pwrite_many(self, items: Iterable[Item]) -> IOFuture:
        """pwrite_many as one future, whose result is the number of bytes."""
        return IOFuture(self._submit_many(items, True))

    # ---- the rest ----

    def fsync(self, filename: File) -> None:
        """Make what was written to a file (a path or a descriptor) durable: fsync(2).

        Wait for its writes first.
        """
        self._core.fsync(filename)

    def stats(self) -> HandleStats:
        """What this handle has done so far.

        ``requests``, ``bytes`` and ``transfers`` by direction ("read", "write"), the last two also
        by path: "direct" (past the page cache), "fixed" (the same, through a buffer registered with
        the engine), "staged" (copied through an aligned block) and "buffered" (through the page
        cache). ``failed`` and ``in_flight`` requests; ``retries``, ``short_transfers``;
        ``direct_refused`` files that took no O_DIRECT; ``latency`` of transfers in seconds: count,
        mean, p50, p90, p99, p999, max. ``devices``: bytes by device number ("major:minor") and
        direction, those of failed requests included. ``queue``: transfers that engines have
        ("in_flight") and that no worker has taken yet ("waiting"). ``staging``: bytes of memory
        for aligned blocks.
        """
        return self._core.stats()

    def close(self) -> None:
        """Wait for what was started and end the workers. Later requests raise RuntimeError.

        Raises AioError when operations failed that no wait() has reported. Repeating it is
        harmless.
        """
        if self._core.closed:
            return
        try:
            self.wait()
        finally:
            self._devices.close()
            self._core.close()
            log_failure(self._core)

    def __enter__(self) -> aio_handle:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self.close()
        else:
            quietly(self, self.close)  # the exception that is under way matters more

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # While the interpreter ends, names of this module may be gone; native code drains then.
        if hasattr(self, "_devices") and not is_finalizing():
            quietly(self, self.close)

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return (
            f"<aio_handle{state} backend={self.backend} block_size={self._block_size} "
            f"queue_depth={self._queue_depth} intra_op_parallelism={self._intra_op_parallelism}>"
        )

    # ---- one way for each kind: host memory natively, device memory through pinned blocks ----

    def _synchronous(
        self, buffer: Any, filename: File, file_offset: int, write: bool, validate: bool
    ) -> int:
        if is_device_tensor(buffer):
            self._devices.submit(buffer, filename, file_offset, write, validate).result()
            return 1
        return self._core.synchronous(buffer, filename, file_offset, write, validate)

    def _asynchronous(
        self, buffer: Any, filename: File, file_offset: int, write: bool, validate: bool
    ) -> int:
        if is_device_tensor(buffer):
            self._devices.start(buffer, filename, file_offset, write, validate)
            return 0
        return self._core.asynchronous(buffer, filename, file_offset, write, validate)

    def _submit(self, buffer: Any, filename: File, file_offset: int, write: bool) -> IOFuture:
        if is_device_tensor(buffer):
            return IOFuture(self._devices.submit(buffer, filename, file_offset, write, False))
        return IOFuture(self._core.submit(buffer, filename, file_offset, write))

    def _many(self, items: Iterable[Item], write: bool) -> int:
        items = list(items)
        ticket = self._submit_many(items, write)
        ticket.wait()
        ticket.result()
        return len(items)

    def _submit_many(self, items: Iterable[Item], write: bool) -> Ticket:
        items = list(items)
        if any(map(has_device_tensor, items)):
            return self._devices.submit_many(items, write)
        return self._core.submit_many(items, write)

    def _either(
        self,
        buffer: Any,
        filename: File,
        validate: bool,
        write: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> int:
        asynchronous, file_offset = _async_and_offset(*args, **kwargs)
        way = self._asynchronous if asynchronous else self._synchronous
        return way(buffer, filename, file_offset, write, validate)


def _async_and_offset(*args: Any, **kwargs: Any) -> tuple[bool, int]:
    """What follows ``validate`` in pread and pwrite; ``async`` cannot name a parameter."""
    names = ("async", "file_offset")
    if len(args) > len(names):
        raise TypeError(f"expected at most 5 arguments, got {len(args) + 3}")
    values = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names or name in values:
            raise TypeError(f"unexpected or repeated argument {name!r}")
        values[name] = value
    if "async" not in values:
        raise TypeError("missing argument 'async': pass it by position, True or False")
    return bool(values["async"]), values.get("file_offset", 0)
