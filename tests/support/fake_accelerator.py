"""An accelerator that keeps books of what is registered with it, and checks that it is locked."""

from __future__ import annotations

import ctypes
import errno
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import _deepnvme
from pinned_manager.accelerators import Accelerator, refusal, set_accelerator
from pinned_manager.accelerators.cpu import DoneEvent
from pinned_manager.device import Event
from support.buffers import PAGE

_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
MADV_COLD = 20  # Linux 5.4: EINVAL for locked pages, ENOMEM for none; harmless for others


def locked(address: int, nbytes: int) -> bool:
    """Whether the kernel has every page of the range locked."""
    return all(
        _madvise(page, PAGE, MADV_COLD) == -1 and ctypes.get_errno() == errno.EINVAL
        for page in range(address, address + nbytes, PAGE)
    )


class FakeAccelerator(Accelerator):
    """``refuse`` and ``keep`` are asked with the number of each registration and its undoing."""

    name = "fake"

    def __init__(self) -> None:
        self.ranges: dict[int, int] = {}  # registered now: bytes by address
        self.registrations = 0
        self.unregistrations = 0
        self.refuse: Callable[[int], bool] = lambda number: False
        self.keep: Callable[[int], bool] = lambda number: False
        self.looks_at_memory = True  # False: ranges need not exist
        self.faults: list[str] = []

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        return False

    def register_host_memory(self, address: int, nbytes: int) -> bool:
        self.registrations += 1
        if any(
            address < base + size and base < address + nbytes for base, size in self.ranges.items()
        ):
            self.faults.append("registered twice")
        self._look(address, nbytes, "registered")
        if self.refuse(self.registrations):
            return False
        self.ranges[address] = nbytes
        return True

    def unregister_host_memory(self, address: int) -> bool:
        self.unregistrations += 1
        if address not in self.ranges:
            self.faults.append("unregistered without having been registered")
            return False
        self._look(address, self.ranges[address], "unregistered")
        if self.keep(self.unregistrations):
            return False
        del self.ranges[address]
        return True

    def synchronize(self) -> None:
        return

    def record_event(self, stream: Any = None) -> Event:
        return DoneEvent()

    def covers(self, tensor: torch.Tensor) -> bool:
        """Whether all of a tensor is within one registration."""
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return any(base <= begin and end <= base + size for base, size in self.ranges.items())

    def _look(self, address: int, nbytes: int, what: str) -> None:
        if self.looks_at_memory and not locked(address, nbytes):
            self.faults.append(f"{what} while not locked")


def give_everything_back() -> None:
    """Empty the pool, whose mappings are registered or not as they were made.

    What earlier tests left as garbage would keep the mappings that small regions share.
    """
    gc.collect()
    _deepnvme.pin.empty_cache()


@contextmanager
def fake_accelerator() -> Iterator[FakeAccelerator]:
    """Within it the process has this one; nothing may be left registered with it."""
    ordinary = torch.zeros(4 * PAGE, dtype=torch.uint8)
    if locked(-(-ordinary.data_ptr() // PAGE) * PAGE, PAGE):
        pytest.skip("madvise(MADV_COLD) does not tell locked memory here (before Linux 5.4)")
    give_everything_back()
    accelerator = FakeAccelerator()
    refusal._said.clear()
    set_accelerator(accelerator)
    try:
        yield accelerator
        give_everything_back()
        assert accelerator.faults == []
        assert accelerator.ranges == {}
    finally:
        set_accelerator(None)
        refusal._said.clear()
