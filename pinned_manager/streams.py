"""Copies whose host memory outlives them, however early its owner lets go.

record_stream() holds the memory together with an event of the stream: the pages stay locked, mapped
and out of the pool until the event is over, after an explicit unpin too. What is over is let go by
whoever next allocates, frees or asks for statistics, or by collect_streams(). Only the head of a
stream's queue is asked, since a stream ends its work in order, and only a few streams at a time: so
a call costs what it lets go. There is one entry for a region, a stream and a thread.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import torch

from _deepnvme import pin as _pin
from pinned_manager.accelerators import get_accelerator
from pinned_manager.compiled import breaks_the_graph
from pinned_manager.device import Event, device_named, device_of

logger = logging.getLogger("pinned_manager")

STREAMS_AT_A_TIME = 4  # asked by a call that has something else to do

# By address and thread, in the order of the events: which is later, only their thread knows.
_Queue = OrderedDict[tuple[int, int], "_Held"]


class _Held(NamedTuple):
    event: Event
    memory: Any  # a hold of a region, or a storage


class _HeldMemory:
    """What streams use.

    The lock is held for single changes, never while an event is asked or memory let go: either
    may run a finalizer that comes here again.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[Any, _Queue] = OrderedDict()  # by stream; the next to ask first
        self._lock = threading.RLock()

    def add(self, stream: Any, address: int, held: _Held) -> None:
        key = address, threading.get_ident()
        with self._lock:
            queue = self._queues.setdefault(stream, OrderedDict())
            replaced = queue.pop(key, None)  # the later event of a stream covers the earlier
            queue[key] = held
        del replaced

    def collect(self, at_most: int | None = None) -> None:
        """Let go of what is over, on so many streams, or on all."""
        with self._lock:
            streams = list(itertools.islice(self._queues, at_most))
        for stream in streams:
            self._collect(stream)

    def _collect(self, stream: Any) -> None:
        while True:
            with self._lock:
                queue = self._queues.get(stream)
                if not queue:
                    self._queues.pop(stream, None)
                    return
                key, held = next(iter(queue.items()))
            if not _is_over(held.event):
                with self._lock:
                    if stream in self._queues:
                        self._queues.move_to_end(stream)
                return
            with self._lock:
                if queue.get(key) is held:
                    del queue[key]
            del held

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._queues.values()))


def _is_over(event: Event) -> bool:
    try:
        return event.query()
    except Exception as error:  # of a broken device, which may reach the memory still: keep it
        _report_broken(str(error))
        return False


@functools.lru_cache(maxsize=8)  # said once for each reason, not at each look
def _report_broken(reason: str) -> None:
    logger.warning("memory that a stream uses is kept, since its device says: %s", reason)


_held = _HeldMemory()
_of_parents: list[_HeldMemory] = []  # never let go: their events are not this process's to ask


def _restart_in_child() -> None:
    global _held
    _of_parents.append(_held)
    _held = _HeldMemory()


def _collect_some() -> None:
    _held.collect(STREAMS_AT_A_TIME)


os.register_at_fork(after_in_child=_restart_in_child)
_pin.set_collector(_collect_some)


def collect_streams() -> int:
    """Let go of memory whose streams are done with it. Returns how many pieces are still held."""
    _held.collect()
    return len(_held)


@breaks_the_graph
def record_stream(tensor: torch.Tensor, stream: Any = None) -> None:
    """Keep a tensor's memory for the work that is queued on ``stream`` now (None: the current one).

    For host memory, pinned or not: it is neither reused nor unlocked before that work is done, even
    if every reference goes and after unpin_memory(). A device tensor is recorded with torch's own
    allocator. ``stream`` has record_event(), as torch's streams do.
    """
    if not tensor.is_cpu:
        stream = device_of(tensor).current_stream() if stream is None else stream
        tensor.record_stream(stream)
        return
    memory = _hold(tensor)
    event = get_accelerator().record_event() if stream is None else stream.record_event()
    _keep(memory, ("current", threading.get_ident()) if stream is None else stream, event)


@breaks_the_graph
def copy_to_device(src: torch.Tensor, device: torch.device | str, non_blocking: bool = True) -> Any:
    """A copy of a host tensor on ``device``, in order with the current stream there.

    With non_blocking it may still be on its way; ``src`` may be dropped or unpinned at once, but
    not written to before the device is synchronised. The copy is not part of autograd. To the CPU
    it is an ordinary copy. Raises TypeError for a device that nothing can be copied to.
    """
    to = device_named(device)
    if to is None:
        _require_host(device)
        return src.detach().clone()
    target: torch.Tensor = to.empty_like(src)
    memory = _hold(src)
    _finish(memory, to.current_stream(), to.copy(target, src), non_blocking)
    return target


@breaks_the_graph
def copy_to_host(
    src: torch.Tensor, dst: torch.Tensor | None = None, non_blocking: bool = True
) -> torch.Tensor:
    """Copy a device tensor to ``dst``, or to new pinned memory (pin_empty_like), and return that.

    With non_blocking it may still be on its way: synchronise before you read it. Either may be
    dropped or unpinned at once. From the CPU it is an ordinary copy. Raises ValueError for a target
    of another shape, TypeError for a device that nothing can be copied from.
    """
    if dst is None:
        from pinned_manager import dispatch  # which needs what this module needs

        dst = dispatch.pin_empty_like(src)
    elif dst.shape != src.shape:
        raise ValueError(
            f"the target has shape {tuple(dst.shape)}, but the tensor to copy {tuple(src.shape)}"
        )
    of = device_named(src.device)
    if of is None:
        _require_host(src.device)
        dst.detach().copy_(src.detach())
        return dst
    memory = _hold(dst)
    if non_blocking:
        of.keep_for_stream(src)
    _finish(memory, of.current_stream(), of.copy(dst, src), non_blocking)
    return dst


def _require_host(device: torch.device | str) -> None:
    if torch.device(device).type != "cpu":
        raise TypeError(f"nothing can be copied to or from {device}: it has no memory of its own")


def _hold(tensor: torch.Tensor) -> Any:
    return _pin.hold(tensor) or tensor.untyped_storage()


def _finish(memory: Any, stream: Any, event: Event, non_blocking: bool) -> None:
    if non_blocking:
        _keep(memory, stream, event)
    else:
        event.synchronize()


def _keep(memory: Any, stream: Any, event: Event | None) -> None:
    if event is None or _is_over(event):  # torch.cpu's streams have no events
        return
    address = memory.address if isinstance(memory, _pin.RegionHold) else memory.data_ptr()
    _held.add(stream, address, _Held(event, memory))
    _collect_some()
