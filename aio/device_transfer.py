"""Device tensors to and from files, through pinned host blocks: copies and I/O overlap.

One thread of a handle carries the transfers of its device tensors, in order. Writing: copy of block
i + 1 while block i is being written. Reading: blocks are read ahead while earlier ones are copied.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError  # Python 3.10 has its own
from dataclasses import dataclass
from typing import Any

import torch

from _deepnvme import io as _io
from _deepnvme.io import AioError, CompletionChannel
from pinned_manager import PinError, new_locked_tensor
from pinned_manager.device import Device, Event, device_of

_logger = logging.getLogger("aio")

BLOCK_BYTES = 8 << 20
BLOCKS = 4  # two being copied, two being written or read


def is_device_tensor(buffer: Any) -> bool:
    """True for a tensor whose memory is not the host's."""
    return getattr(buffer, "is_cpu", True) is False


def has_device_tensor(item: Any) -> bool:
    """The same for the buffer of an item of pread_many() or pwrite_many()."""
    return bool(item) and is_device_tensor(item[0])


def _members(item: Any) -> tuple[Any, Any, Any]:
    """Buffer, file name and offset of an item, as the core takes items of host memory apart."""
    members = tuple(item)
    if len(members) not in (2, 3):
        raise ValueError(
            f"an item has {len(members)} members, but must be (buffer, filename) or "
            "(buffer, filename, file_offset)"
        )
    return (*members, 0)[:3]


@dataclass
class _Block:
    """A piece of pinned memory, and what still uses it."""

    memory: torch.Tensor  # (BLOCK_BYTES,) uint8
    ticket: _io.Ticket | None = None
    event: Event | None = None

    def settle(self) -> None:
        """Wait until neither a request nor a copy uses it. Raises AioError of its request."""
        ticket, self.ticket = self.ticket, None
        event, self.event = self.event, None
        if event is not None:
            event.synchronize()
        if ticket is not None:
            ticket.wait()
            ticket.result()


@dataclass
class _DeviceTicket:
    """A transfer of a device tensor, as a future waits for it."""

    future: Future[int]

    def done(self) -> bool:
        return self.future.done()

    def wait(self, timeout: float | None = None) -> bool:
        try:
            self.future.exception(timeout)
        except FutureTimeoutError:
            return False
        return True

    def result(self) -> int:
        return self.future.result()

    def notify(self, channel: CompletionChannel, token: int) -> None:
        self.future.add_done_callback(lambda _: channel.push(token))


@dataclass
class _Prepared:
    """A transfer whose file is open."""

    file: _io.OpenFile
    carry_out: Callable[[], int]  # in the thread; closes the file


class DeviceTransfers:
    """The transfers of device tensors of one handle; nothing is made before the first one."""

    def __init__(self, core: _io.Handle) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._blocks: list[_Block] = []
        self._uncounted: list[Future[int]] = []

    def submit(
        self, tensor: Any, filename: Any, file_offset: int, write: bool, validate: bool
    ) -> _DeviceTicket:
        """Start a transfer. Opens the file and orders it after the device's current work, here."""
        return self._begin(self._prepare(tensor, filename, file_offset, write, validate))

    def _prepare(
        self, tensor: Any, filename: Any, file_offset: int, write: bool, validate: bool
    ) -> _Prepared:
        """All of a transfer but its bytes: everything that may be wrong with its arguments."""
        self._core.require_usable()
        device = device_of(tensor)
        ready = device.record_event()
        file = self._core.open(filename, file_offset, tensor.nbytes, write)
        transfer = self._write if write else self._read

        def carry_out() -> int:
            try:
                with device.side_stream(ready):
                    nbytes = transfer(device, tensor, file, file_offset)
                if validate:
                    self._validate(device, tensor, file, file_offset)
                return nbytes
            except AioError as error:  # of one block: say it of the request
                raise _of_request(error, file_offset, tensor.nbytes) from error
            finally:
                file.close()

        return _Prepared(file, carry_out)

    def _begin(self, prepared: _Prepared) -> _DeviceTicket:
        try:
            return _DeviceTicket(self._executor().submit(prepared.carry_out))
        except BaseException:
            # An executor that cannot start a thread keeps the work for a later one: it must fail.
            prepared.file.close()
            raise

    def start(
        self, tensor: Any, filename: Any, file_offset: int, write: bool, validate: bool
    ) -> None:
        """The same, counted by wait()."""
        ticket = self.submit(tensor, filename, file_offset, write, validate)
        with self._lock:
            self._uncounted.append(ticket.future)

    def submit_many(self, items: list[Any], write: bool) -> _DeviceTicket:
        """Start transfers of host and device tensors together; one failure does not stop others."""
        refused: list[BaseException] = []
        prepared: deque[_Prepared] = deque()
        tickets: list[_io.Ticket | _DeviceTicket] = []

        def collect() -> int:
            nbytes = 0
            failures = list(refused)
            for ticket in tickets:
                ticket.wait()
                try:
                    nbytes += ticket.result()
                except Exception as error:  # whatever it is, the others are still in flight
                    failures.append(error)
            _raise_any(failures)
            return nbytes

        try:
            for item in filter(has_device_tensor, items):
                buffer, filename, file_offset = _members(item)
                try:
                    prepared.append(self._prepare(buffer, filename, file_offset, write, False))
                except AioError as error:
                    refused.append(error)
            host_items = [item for item in items if not has_device_tensor(item)]
            tickets.append(self._core.submit_many(host_items, write))  # the last to be checked
            while prepared:
                tickets.append(self._begin(prepared.popleft()))
            return _DeviceTicket(self._executor().submit(collect))  # behind what it waits for
        except BaseException:  # of an argument, or of a thread: nobody will wait for what runs
            for one in prepared:
                one.file.close()
            for ticket in tickets:
                ticket.wait()
            raise

    def wait(self, wait_for_host: Callable[[], int]) -> int:
        """The number of operations, of host tensors and of device tensors, that are done now."""
        if not self._uncounted:
            return wait_for_host()
        with self._lock:
            waited = list(self._uncounted)
        for future in waited:
            future.exception()  # Ctrl-C ends it here: nothing is counted yet
        count = 0
        failures: list[BaseException] = []
        try:
            count += wait_for_host()
        except AioError as error:
            failures.append(error)
        with self._lock:  # another thread may have counted some meanwhile
            waited = [future for future in waited if future in self._uncounted]
            self._uncounted = [future for future in self._uncounted if future not in waited]
        found = [future.exception() for future in waited]
        failures += [failure for failure in found if failure is not None]
        _raise_any(failures)
        return count + found.count(None)

    def close(self) -> None:
        """End the thread and give back the blocks. wait() comes first."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()
        self._blocks.clear()

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="aio-device")
            return self._thread

    def _take_blocks(self) -> list[_Block]:
        if not self._blocks:
            self._blocks = [_Block(_new_memory()) for _ in range(BLOCKS)]  # all of them or none
        return self._blocks

    def _write(self, device: Device, tensor: Any, file: _io.OpenFile, file_offset: int) -> int:
        source = device.octets(device.contiguous(tensor))
        nbytes = len(source)
        blocks = self._take_blocks()
        copied: tuple[_Block, int, int] | None = None

        def write_out(block: _Block, begin: int, end: int) -> None:
            block.settle()
            block.ticket = self._core.submit(
                block.memory[: end - begin], file, file_offset + begin, True
            )

        try:
            for number, begin in enumerate(range(0, nbytes, BLOCK_BYTES)):
                block, end = blocks[number % BLOCKS], min(begin + BLOCK_BYTES, nbytes)
                block.settle()
                block.event = device.copy_to_host(block.memory[: end - begin], source[begin:end])
                if copied is not None:
                    write_out(*copied)
                copied = block, begin, end
            if copied is not None:
                write_out(*copied)
            for block in blocks:
                block.settle()
        finally:
            _abandon(blocks)
        return nbytes

    def _read(self, device: Device, tensor: Any, file: _io.OpenFile, file_offset: int) -> int:
        target = device.contiguous_target(tensor)
        destination = device.octets(target)
        nbytes = len(destination)
        blocks = self._take_blocks()
        pieces = [
            (begin, min(begin + BLOCK_BYTES, nbytes)) for begin in range(0, nbytes, BLOCK_BYTES)
        ]

        def read_ahead(number: int) -> None:
            if number < len(pieces):
                (begin, end), block = pieces[number], blocks[number % BLOCKS]
                block.settle()
                block.ticket = self._core.submit(
                    block.memory[: end - begin], file, file_offset + begin, False
                )

        try:
            for number in range(BLOCKS - 1):
                read_ahead(number)
            for number, (begin, end) in enumerate(pieces):
                block = blocks[number % BLOCKS]
                block.settle()
                block.event = device.copy_to_device(
                    destination[begin:end], block.memory[: end - begin]
                )
                read_ahead(number + BLOCKS - 1)
            for block in blocks:
                block.settle()
            device.finish_target(target, tensor)
        finally:
            _abandon(blocks)
        return nbytes

    def _validate(self, device: Device, tensor: Any, file: _io.OpenFile, file_offset: int) -> None:
        source = device.octets(device.contiguous(tensor))
        host = torch.empty(len(source), dtype=torch.uint8)
        device.copy_to_host(host, source).synchronize()
        stored = torch.empty_like(host)
        # Opened anew: a file opened for writing cannot be read.
        self._core.synchronous(stored, f"/proc/self/fd/{file.fileno()}", file_offset, False, False)
        if not torch.equal(host, stored):
            raise AioError(errno.EIO, "validation found that memory and file differ", file.path())


def _of_request(error: AioError, file_offset: int, nbytes: int) -> AioError:
    """The error of one block as that of its request. What was moved before is not known."""
    whole = AioError(error.errno, error.strerror, error.filename)
    whole.offset, whole.nbytes, whole.nbytes_done = file_offset, nbytes, 0
    return whole


def _raise_any(failures: Iterable[BaseException]) -> None:
    """Raise one if there is any: an AioError, which lists the others; but before it what is none,
    such as a device's, which cannot, so that the others are logged then.
    """
    transfers: list[AioError] = []
    others: list[BaseException] = []
    for failure in failures:
        if isinstance(failure, AioError):
            transfers += failure.failures
        else:
            others.append(failure)
    if others:
        for failure in (*others[1:], *transfers):
            _logger.error("besides what is raised, another transfer failed: %s", failure)
        raise others[0]
    if transfers:
        transfers[0]._other_failures = tuple(transfers[1:])
        raise transfers[0]


def _new_memory() -> torch.Tensor:
    try:
        return new_locked_tensor(BLOCK_BYTES, torch.uint8, "device_transfer")
    except PinError:  # under a tight memlock limit copies are slower, but possible
        return torch.empty(BLOCK_BYTES, dtype=torch.uint8)


def _abandon(blocks: list[_Block]) -> None:
    """After a failure: nothing may use the blocks any more.

    What else fails now is a consequence.
    """
    for block in blocks:
        if block.ticket is not None:
            block.ticket.wait()
            block.ticket = None
    for block in blocks:
        event, block.event = block.event, None  # one that fails will not do so again
        if event is not None:
            event.synchronize()
