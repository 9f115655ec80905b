"""Pinned memory lives until its last alias goes, and not a moment longer (E-04)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import _deepnvme
import aio
import support.torch_threads  # noqa: F401
from support.buffers import locked
from support.counters import counters

NBYTES = 1 << 20


def redirected(t: torch.Tensor) -> torch.Tensor:
    """ZeRO rebinds `.data` of its parameters to pinned buffers."""
    holder = torch.zeros(3, dtype=torch.uint8)
    holder.data = t
    return holder


ALIASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda t: t.view(-1)[5:],
    "numpy": lambda t: t.numpy(),
    "numpy slice": lambda t: t.numpy()[100:200],
    "detach": lambda t: t.detach(),
    "storage": lambda t: t.untyped_storage(),
    "parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "memoryview": lambda t: memoryview(t.numpy().data),
    "dlpack capsule": lambda t: t.__dlpack__(),
    "other dtype": lambda t: t.view(torch.float32),
    "data": redirected,
    "closure": lambda t: lambda: t,
}


def seen_through(alias: Any) -> Any:
    """The bytes behind any of the aliases, as a tensor or a buffer."""
    if callable(alias):
        return alias()
    if type(alias).__name__ == "PyCapsule":
        return torch.utils.dlpack.from_dlpack(alias)
    if isinstance(alias, torch.UntypedStorage):
        return torch.empty(0, dtype=torch.uint8).set_(alias)
    return alias.view(torch.uint8) if isinstance(alias, torch.Tensor) else alias


@pytest.mark.parametrize("nbytes", [NBYTES, 20_000], ids=["large", "small"])
@pytest.mark.parametrize("name", ALIASES)
def test_the_last_alias(name: str, nbytes: int) -> None:
    pins = aio.pin_handle()
    with counters():
        before = _deepnvme.pin.stats()["in_use"]
        tensor = locked(pins, nbytes).fill_(42)
        alias = ALIASES[name](tensor)
        address = tensor.data_ptr()
        del tensor
        gc.collect()
        churn = [locked(pins, nbytes).fill_(9) for _ in range(5)]
        assert address not in [other.data_ptr() for other in churn]
        churn.clear()
        assert _deepnvme.pin.stats()["in_use"] == before + nbytes + -nbytes % 4096
        seen = seen_through(alias)
        assert int(seen[77]) == 42
        assert pins.is_pinned(seen)
        del alias, seen
        gc.collect()
        assert _deepnvme.pin.stats()["in_use"] == before


def test_the_object_may_go_before_its_storage() -> None:
    """No finalizer of the tensor object frees anything: another object may have its storage."""
    pins = aio.pin_handle()
    tensor = locked(pins, NBYTES).fill_(42)
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.uint8), requires_grad=False)
    parameter.data = tensor
    gone = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert gone() is None
    assert pins.is_pinned(parameter)
    locked(pins, NBYTES).fill_(9)
    assert bool((parameter == 42).all())


def test_freed_memory_stays_readable() -> None:
    """free_cpu_locked_tensor takes the lock away, never the memory under a live alias."""
    pins = aio.pin_handle()
    for nbytes in (20_000, NBYTES):
        tensor = locked(pins, nbytes).fill_(42)
        view = tensor.numpy()[100:]
        assert pins.free_cpu_locked_tensor(tensor) is True
        del tensor
        _deepnvme.pin.empty_cache()
        others = [locked(pins, nbytes).fill_(9) for _ in range(5)]
        assert bool((view == 42).all())
        view[:] = 43
        assert all(bool((other == 9).all()) for other in others)


def test_a_pin_handle_may_go_first() -> None:
    tensor = locked(aio.pin_handle(), NBYTES).fill_(42)
    gc.collect()
    assert aio.pin_handle().is_pinned(tensor)
    with aio.aio_handle() as handle:
        other = locked(handle, NBYTES).fill_(43)
    del handle
    gc.collect()
    assert aio.pin_handle().is_pinned(other)
    assert int(tensor[5]) == 42
    assert int(other[5]) == 43
