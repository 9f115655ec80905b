"""A device whose copies are as late as they may be, so that missing synchronisation is seen.

Its memory is host memory that nothing but its copies may touch.  Work is queued on streams, and one
thread carries it out: nothing before somebody waits for it, and nothing at all while the test holds
the device back.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pinned_manager.device import Device, register_device, unregister_device
from support.counters import PATIENCE_S

TYPE = "fake"
BLOCK = 4096 + 512  # bytes of the blocks between device and file, where support.device_fixtures is


@dataclass(frozen=True)
class FakeType:
    """What ``tensor.device`` is."""

    type: str = TYPE

    def __str__(self) -> str:
        return self.type


class FakeTensor:
    """Device memory, ``step`` bytes from one element (a byte) to the next."""

    is_cpu = False

    def __init__(self, data: bytes, step: int = 1, device: FakeType | None = None) -> None:
        self.device = device or FakeType()
        self.memory = np.zeros(len(data) * step, dtype=np.uint8)
        self.elements = self.memory[::step]
        self.elements[:] = np.frombuffer(data, dtype=np.uint8)

    @property
    def nbytes(self) -> int:
        return self.elements.nbytes

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.elements.shape)


def empty(nbytes: int, step: int = 1) -> FakeTensor:
    """Zeros on the device, `step` bytes from one to the next."""
    return FakeTensor(bytes(nbytes), step)


@dataclass
class _Work:
    """One entry of a stream, and the entries before which it may not be carried out."""

    call: Callable[[], None]
    after: list[_Work]
    number: int
    done: threading.Event = field(default_factory=threading.Event)


class FakeEvent:
    """The point behind one entry of a stream."""

    def __init__(self, device: FakeDevice, work: _Work) -> None:
        self._device = device
        self._work = work

    def query(self) -> bool:
        return self._work.done.is_set()

    def synchronize(self) -> None:
        self._device.finish(self._work)


@dataclass(frozen=True)
class FakeStream:
    """One queue of the device; streams of one number are equal."""

    device: FakeDevice
    number: int

    def record_event(self) -> FakeEvent:
        return self.device.record_event_on(self.number)


class FakeDevice(Device):
    """``hold()`` keeps everything queued until ``let_go()``; ``launch()`` queues a kernel."""

    def __init__(self) -> None:
        self.copies = 0  # carried out
        self.fail_copies = 0  # so many of the next copies are refused
        self.corrupt_copies = 0  # so many of the next copies to the host arrive wrong
        self._numbers = itertools.count()
        self._last: dict[int, _Work] = {}  # by stream, 0 being everybody's default
        self._streams = itertools.count(1)
        self._local = threading.local()
        self._changed = threading.Condition()
        self._wanted: list[_Work] = []
        self._held = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="fake-device", daemon=True)
        self._thread.start()

    # ---- the test's side ----

    def hold(self) -> None:
        """Carry nothing out until let_go()."""
        with self._changed:
            self._held = True

    def let_go(self) -> None:
        """Go on."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def until_asked(self, waiters: int = 1) -> None:
        """Return once somebody waits for work that is held back."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._wanted) >= waiters, PATIENCE_S):
                raise AssertionError("nobody waits for the device")

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Within it, what this thread queues goes to a stream of its own, after nothing else."""
        before = self._stream
        self._local.stream = next(self._streams)
        try:
            yield
        finally:
            self._local.stream = before

    def launch(self, kernel: Callable[[], None]) -> None:
        """Queue a kernel on the current stream."""
        self._queue(kernel)

    def bytes_of(self, tensor: FakeTensor) -> bytes:
        """What the tensor holds once everything on the current stream is done."""
        self.record_event().synchronize()
        return tensor.elements.tobytes()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._held = False
            self._changed.notify_all()
        self._thread.join()

    # ---- the library's side ----

    def current_stream(self) -> FakeStream:
        return FakeStream(self, self._stream)

    def record_event(self) -> FakeEvent:
        return self.record_event_on(self._stream)

    def record_event_on(self, stream: int) -> FakeEvent:
        return FakeEvent(self, self._queue(lambda: None, stream))

    @contextmanager
    def side_stream(self, after: Any) -> Iterator[None]:
        with self.stream():
            self._last[self._stream] = after._work
            yield

    def copy_to_host(self, host: torch.Tensor, source: Any) -> FakeEvent:
        target = host.numpy()
        corrupt = self._take("corrupt_copies")
        return self._copy(target, source, corrupt)

    def copy_to_device(self, destination: Any, host: torch.Tensor) -> FakeEvent:
        return self._copy(destination, host.numpy(), False)

    def empty_like(self, host: torch.Tensor) -> FakeTensor:
        return empty(host.nbytes)

    def copy(self, destination: Any, source: Any) -> FakeEvent:
        """As a device does it, by addresses: the copy keeps no memory alive."""
        return self._copy(_at_address(destination), _at_address(source), False)

    def keep_for_stream(self, tensor: FakeTensor) -> None:
        def use_until_now() -> None:
            tensor.memory.size  # noqa: B018  # queued behind the work that needs it

        self._queue(use_until_now)

    def octets(self, tensor: Any) -> Any:
        assert tensor.elements.flags.c_contiguous
        return tensor.elements

    def contiguous(self, tensor: Any) -> Any:
        if tensor.elements.flags.c_contiguous:
            return tensor
        copy = FakeTensor(bytes(tensor.nbytes))
        self._queue(lambda: np.copyto(copy.elements, tensor.elements))
        return copy

    def contiguous_target(self, tensor: Any) -> Any:
        if tensor.elements.flags.c_contiguous:
            return tensor
        return FakeTensor(bytes(tensor.nbytes))

    def finish_target(self, target: Any, tensor: Any) -> None:
        if target is not tensor:
            self._queue(lambda: np.copyto(tensor.elements, target.elements))
        self.record_event().synchronize()

    # ---- streams ----

    @property
    def _stream(self) -> int:
        stream: int = getattr(self._local, "stream", 0)
        return stream

    def _take(self, counter: str) -> bool:
        left: int = getattr(self, counter)
        setattr(self, counter, max(left - 1, 0))
        return left > 0

    def _copy(self, target: Any, source: Any, corrupt: bool) -> FakeEvent:
        if len(target) != len(source):
            raise AssertionError("a copy between different sizes")
        if self._take("fail_copies"):
            raise RuntimeError("the device does not copy")

        def carry_out() -> None:
            np.copyto(target, source)
            self.copies += 1
            if corrupt:
                target[-1] ^= 1

        return FakeEvent(self, self._queue(carry_out))

    def _queue(self, call: Callable[[], None], stream: int | None = None) -> _Work:
        with self._changed:
            stream = self._stream if stream is None else stream
            last = self._last.get(stream)
            work = _Work(call, [last] if last is not None else [], next(self._numbers))
            self._last[stream] = work
            return work

    def finish(self, work: _Work) -> None:
        """Have everything up to `work` carried out."""
        with self._changed:
            self._wanted.append(work)
            self._changed.notify_all()
        if not work.done.wait(PATIENCE_S):
            raise AssertionError("the device was never let go")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._ended or (bool(self._wanted) and not self._held)
                )
                if not self._wanted:
                    return
                work = self._wanted.pop()
            for step in self._up_to(work):
                step.call()
                step.after.clear()
                step.done.set()

    def _up_to(self, work: _Work) -> list[_Work]:
        """What `work` waits for and `work`, in the order in which they were queued."""
        found: dict[int, _Work] = {}
        open_ends = [work]
        while open_ends:
            step = open_ends.pop()
            if not step.done.is_set() and step.number not in found:
                found[step.number] = step
                open_ends += step.after
        return [found[number] for number in sorted(found)]


def _at_address(tensor: Any) -> Any:
    """The bytes of a contiguous tensor of either kind, without a reference to it."""
    if isinstance(tensor, FakeTensor):
        return tensor.elements
    assert tensor.is_contiguous()
    room = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    return np.frombuffer(room, dtype=np.uint8)


@contextmanager
def fake_device() -> Iterator[FakeDevice]:
    """A fake device that the library knows meanwhile."""
    device = FakeDevice()
    register_device(TYPE, device)
    try:
        yield device
    finally:
        unregister_device(TYPE)
        device.end()
