"""Pinning in tests: what the accounts must say, and an accelerator whose torch pins memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import _deepnvme
from pinned_manager import get_budget, pinned_memory_stats, set_accelerator, set_budget
from pinned_manager.accelerators.cpu import CpuAccelerator
from support.buffers import PAGE
from support.counters import status_kb

VARIABLE = "DS_PIN_MEMORY_BACKEND"


def pages(nbytes: int) -> int:
    """Bytes of the pages that hold `nbytes`."""
    return -(-nbytes // PAGE) * PAGE


@dataclass
class Baseline:
    """What others hold when a test begins; the library's own accounts are looked at from there."""

    live: int = 0
    others: int = 0  # VmLck that the library does not know of
    checks: int = 0

    @classmethod
    def now(cls) -> Baseline:
        gc.collect()
        _deepnvme.pin.empty_cache()
        stats = pinned_memory_stats()
        locked = status_kb("VmLck") * 1024
        return cls(stats["live"], locked - stats["live"] - stats["cached"])

    def check(self, live: int) -> None:
        """`live` bytes, page-rounded, are what is reported, and with the cache what is locked."""
        stats = pinned_memory_stats()
        assert stats["live"] - self.live == live
        assert sum(stats["by_tag"].values()) == stats["live"]
        assert sum(one["live"] for one in stats["by_backend"].values()) == stats["live"]
        assert status_kb("VmLck") * 1024 - self.others == stats["live"] + stats["cached"]
        assert stats["peak"] >= stats["live"]
        self.checks += 1

    def check_nothing_is_left(self) -> None:
        gc.collect()
        _deepnvme.pin.empty_cache()
        self.check(0)
        assert status_kb("VmLck") * 1024 == self.others + self.live


class PinningAccelerator(CpuAccelerator):
    """An accelerator for whose device torch pins host memory, in ordinary memory that it knows."""

    name = "pretended"

    def __init__(self) -> None:
        self.pinned: list[tuple[int, int]] = []  # address, bytes
        self.copies = 0

    def allocate(self, shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        tensor = _empty_strided(shape, strides, dtype=dtype)
        if tensor.numel():
            self.pinned.append((tensor.data_ptr(), tensor.untyped_storage().nbytes()))
        return tensor

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        self.copies += 1
        return self.allocate(tensor.shape, tensor.stride(), tensor.dtype).copy_(tensor)

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        address = tensor.data_ptr()
        return any(base <= address < base + nbytes for base, nbytes in self.pinned)


_empty_strided = torch.empty_strided


@contextmanager
def no_more_pins() -> Iterator[None]:
    """Within it the budget has no room for any."""
    before = get_budget()
    set_budget(0)
    try:
        yield
    finally:
        set_budget(before)


@contextmanager
def pinning_accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[PinningAccelerator]:
    """Within it torch pins host memory, or so it seems."""
    accelerator = PinningAccelerator()

    def empty_strided(
        shape: Any, strides: Any, dtype: torch.dtype, pin_memory: bool = False, **how: Any
    ) -> torch.Tensor:
        if pin_memory:
            return accelerator.allocate(shape, strides, dtype)
        return _empty_strided(shape, strides, dtype=dtype, **how)

    monkeypatch.setattr(torch, "empty_strided", empty_strided)
    set_accelerator(accelerator)
    try:
        yield accelerator
    finally:
        set_accelerator(None)
