"""Device tensors to and from files, through pinned host blocks: copies and I/O overlap.

One thread of a handle carries the transfers of its device tensors, in order. Writing: copy of block
i + 1 while block i is being written. Reading: blocks are read ahead while earlier ones are copied.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError  # Python 3.10 has its own
from dataclasses import dataclass
from typing import Any

import torch

from _deepnvme import io as _io
from _deepnvme.io import AioError, CompletionChannel
from pinned_manager import PinError, new_locked_tensor
from pinned_manager.device import Device, Event, device_of

BLOCK_BYTES = 8 << 20
BLOCKS = 4  # two being copied, two being written or read


def is_device_tensor(buffer: Any) -> bool:
    """True for a tensor whose memory is not the host's."""
    return getattr(buffer, "is_cpu", True) is False


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
        self._core.require_usable()
        device = device_of(tensor)
        if not 0 <= file_offset <= 2**63 - 1 - tensor.nbytes:
            raise ValueError(
                f"file_offset is {file_offset}, but must be from 0 to 2**63 - 1 less the "
                f"{tensor.nbytes} bytes of the tensor; give the byte of the file to start at"
            )
        descriptor = _open(filename, write, file_offset, tensor)
        ready = device.record_event()
        transfer = self._write if write else self._read

        def carry_out() -> int:
            try:
                with device.side_stream(ready):
                    try:
                        nbytes = transfer(device, tensor, descriptor, file_offset)
                    except AioError as error:  # of one block: say it of the request
                        raise _aio_error(
                            error.errno, error.strerror, error.filename, file_offset, tensor
                        ) from error
                if validate:
                    self._validate(device, tensor, descriptor, file_offset)
                return nbytes
            finally:
                os.close(descriptor)

        return _DeviceTicket(self._executor().submit(carry_out))

    def start(
        self, tensor: Any, filename: Any, file_offset: int, write: bool, validate: bool
    ) -> None:
        """The same, counted by wait()."""
        ticket = self.submit(tensor, filename, file_offset, write, validate)
        with self._lock:
            self._uncounted.append(ticket.future)

    def submit_many(self, items: list[Any], write: bool) -> _DeviceTicket:
        """Start transfers of host and device tensors together; one failure does not stop others."""
        failures: list[AioError] = []
        tickets: list[_io.Ticket | _DeviceTicket] = []
        for buffer, filename, *offset in (item for item in items if is_device_tensor(item[0])):
            file_offset = offset[0] if offset else 0
            try:
                tickets.append(self.submit(buffer, filename, file_offset, write, False))
            except AioError as error:
                failures.append(error)
        host_items = [item for item in items if not is_device_tensor(item[0])]
        tickets.append(self._core.submit_many(host_items, write))

        def collect() -> int:
            nbytes = 0
            for ticket in tickets:
                ticket.wait()
                try:
                    nbytes += ticket.result()
                except AioError as error:
                    failures.extend(error.failures)
            _raise_all(failures)
            return nbytes

        return _DeviceTicket(self._executor().submit(collect))  # behind the transfers it waits for

    def wait(self, wait_for_host: Callable[[], int]) -> int:
        """The number of operations, of host tensors and of device tensors, that are done now."""
        if not self._uncounted:
            return wait_for_host()
        count = 0
        failures: list[AioError] = []
        with self._lock:
            waited, self._uncounted = self._uncounted, []
        try:
            for future in waited:
                future.exception()
        except BaseException:  # Ctrl-C: they are counted by a later wait
            with self._lock:
                self._uncounted = waited + self._uncounted
            raise
        for future in waited:
            error = future.exception()
            if error is None:
                count += 1
            elif isinstance(error, AioError):
                failures += error.failures
            else:
                raise error
        try:
            count += wait_for_host()
        except AioError as error:
            failures += error.failures
        _raise_all(failures)
        return count

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
            for _ in range(BLOCKS):
                try:
                    memory = new_locked_tensor(BLOCK_BYTES, torch.uint8, "device_transfer")
                except PinError:  # under a tight memlock limit copies are slower, but possible
                    memory = torch.empty(BLOCK_BYTES, dtype=torch.uint8)
                self._blocks.append(_Block(memory))
        return self._blocks

    def _write(self, device: Device, tensor: Any, descriptor: int, file_offset: int) -> int:
        source = device.octets(device.contiguous(tensor))
        nbytes = len(source)
        blocks = self._take_blocks()
        copied: tuple[_Block, int, int] | None = None

        def write_out(block: _Block, begin: int, end: int) -> None:
            if block.event is not None:
                block.event.synchronize()
                block.event = None
            block.ticket = self._core.submit(
                block.memory[: end - begin], descriptor, file_offset + begin, True
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

    def _read(self, device: Device, tensor: Any, descriptor: int, file_offset: int) -> int:
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
                    block.memory[: end - begin], descriptor, file_offset + begin, False
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

    def _validate(self, device: Device, tensor: Any, descriptor: int, file_offset: int) -> None:
        source = device.octets(device.contiguous(tensor))
        host = torch.empty(len(source), dtype=torch.uint8)
        device.copy_to_host(host, source).synchronize()
        stored = bytearray(len(source))
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:
            file.seek(file_offset)
            moved = file.readinto(stored)
        if moved != len(stored) or bytes(stored) != host.numpy().tobytes():
            raise _aio_error(
                errno.EIO,
                "validation found that memory and file differ",
                descriptor,
                file_offset,
                tensor,
            )


def _raise_all(failures: list[AioError]) -> None:
    """Raise the first failure, which lists them all; nothing when there is none."""
    if failures:
        failures[0].failures = tuple(failures)
        raise failures[0]


def _abandon(blocks: list[_Block]) -> None:
    """After a failure: nothing may use the blocks any more.

    What else fails now is a consequence.
    """
    for block in blocks:
        if block.ticket is not None:
            block.ticket.wait()
        if block.event is not None:
            block.event.synchronize()
        block.ticket = block.event = None


def _open(filename: Any, write: bool, file_offset: int, tensor: Any) -> int:
    """A descriptor of our own. Raises AioError like a request on host memory."""
    if isinstance(filename, int):
        filename = f"/proc/self/fd/{filename}"
    try:
        return os.open(filename, (os.O_WRONLY | os.O_CREAT) if write else os.O_RDONLY, 0o600)
    except OSError as error:
        raise _aio_error(error.errno, error.strerror, error.filename, file_offset, tensor) from None


def _aio_error(
    number: int | None, message: str | None, filename: Any, file_offset: int, tensor: Any
) -> AioError:
    """What the native core would raise for a request on ``tensor``."""
    if isinstance(filename, int):
        filename = os.readlink(f"/proc/self/fd/{filename}")
    error = AioError(number, message, filename)
    error.offset, error.nbytes, error.nbytes_done = file_offset, tensor.nbytes, 0
    error.failures = (error,)
    return error
