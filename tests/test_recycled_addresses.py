"""Ordinary memory at an address that was pinned is not pinned, and can be pinned anew (E-19)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import _deepnvme
import aio
import support.torch_threads  # noqa: F401
from support.addresses import mapped_at
from support.buffers import locked
from support.counters import counters

ROUNDS = 8
MANY_ROUNDS = 10_000
NBYTES = 300 << 10  # a mapping of its own, which smaller regions share


def freed(pins: Any) -> int:
    tensor = locked(pins, NBYTES)
    address = tensor.data_ptr()
    assert pins.free_cpu_locked_tensor(tensor)
    return address


def freed_by_pointer(pins: Any) -> int:
    tensor = locked(pins, NBYTES)
    assert pins.free_cpu_locked_tensor_by_ptr(tensor.data_ptr())
    return tensor.data_ptr()


def collected(pins: Any) -> int:
    tensor = locked(pins, NBYTES)
    return tensor.data_ptr()


def collected_in_a_cycle(pins: Any) -> int:
    cycle: list[Any] = [locked(pins, NBYTES)]
    cycle.append(cycle)
    address = int(cycle[0].data_ptr())
    del cycle
    gc.collect()
    return address


def rebound(pins: Any) -> int:
    tensor = locked(pins, NBYTES)
    address = tensor.data_ptr()
    tensor.data = torch.zeros(1, dtype=torch.uint8)
    return address


def through_an_alias(pins: Any) -> int:
    array = locked(pins, NBYTES).numpy()[5:]
    assert pins.is_pinned(array)
    return int(array.ctypes.data) - 5


def of_a_closed_handle(pins: Any) -> int:
    with aio.aio_handle() as handle:
        tensor = locked(handle, NBYTES)
        return tensor.data_ptr()


def not_resized(pins: Any) -> int:
    """The storage is not torch's to shrink: refused, and the region is what it was."""
    tensor = locked(pins, NBYTES)
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.untyped_storage().resize_(0)
    assert pins.is_pinned(tensor)
    return tensor.data_ptr()


WAYS = [freed, freed_by_pointer, collected, collected_in_a_cycle, rebound, through_an_alias]
WAYS += [of_a_closed_handle, not_resized]


@pytest.mark.parametrize("let_go", WAYS)
def test_it_is_ordinary(let_go: Callable[[Any], int]) -> None:
    pins = aio.pin_handle()
    with counters():
        for _ in range(ROUNDS):
            address = let_go(pins)
            _deepnvme.pin.empty_cache()
            with mapped_at(address, NBYTES) as memory:
                memory[:] = 5
                tensor = torch.from_numpy(memory)
                for view in (memory, tensor, tensor[1:], tensor[::2]):
                    assert pins.is_pinned(view) is False
                assert pins.free_cpu_locked_tensor(tensor) is False
                again = locked(pins, NBYTES)
                assert pins.is_pinned(again)
                assert pins.is_pinned(tensor) is False
                del again, tensor, view
            _deepnvme.pin.empty_cache()


def test_ten_thousand_times() -> None:
    """Nothing is remembered of a region however many there have been at its address."""
    pins = aio.pin_handle()
    ways = [freed, freed_by_pointer, collected, rebound, through_an_alias, not_resized]
    with counters():
        for number in range(MANY_ROUNDS):
            address = ways[number % len(ways)](pins)
            _deepnvme.pin.empty_cache()
            with mapped_at(address, NBYTES) as memory:
                assert pins.is_pinned(memory) is False
                assert number % 10 or pins.is_pinned(locked(pins, NBYTES))


def test_a_pooled_address_is_not_pinned() -> None:
    """What waits in the pool for the next owner belongs to nobody."""
    pins = aio.pin_handle()
    for nbytes in (20_000, NBYTES):
        tensor = locked(pins, nbytes)
        address = tensor.data_ptr()
        del tensor
        assert pins.free_cpu_locked_tensor_by_ptr(address) is False
        again = locked(pins, nbytes)
        assert pins.is_pinned(again)
        assert again.data_ptr() == address


def test_io_to_memory_at_an_address_that_was_pinned(directory: Path, backend: str) -> None:
    """No ring still knows the address as a fixed buffer of pages that are gone."""
    path = directory / "file"
    data = bytes(range(256)) * (NBYTES // 256)
    path.write_bytes(data)
    pins = aio.pin_handle()
    with aio.aio_handle(backend=backend) as handle:
        for _ in range(10):
            tensor = locked(pins, NBYTES)
            handle.sync_pread(tensor, path)
            address = tensor.data_ptr()
            assert pins.free_cpu_locked_tensor(tensor)
            del tensor
            _deepnvme.pin.empty_cache()
            with mapped_at(address, NBYTES) as memory:
                memory[:] = 0
                handle.sync_pread(memory, path)
                assert memory.tobytes() == data
                handle.sync_pwrite(memory, directory / "copy")
            assert (directory / "copy").read_bytes() == data
