"""free_cpu_locked_tensor answers True once, for the base of a region (E-05, E-06, E-07)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

import _deepnvme
import aio
import support.torch_threads  # noqa: F401
from support.buffers import locked
from support.counters import counters

SIZES = pytest.mark.parametrize("nbytes", [20_000, 1 << 20], ids=["small", "large"])


@SIZES
def test_twice(nbytes: int) -> None:
    pins = aio.pin_handle()
    with counters():
        before = _deepnvme.pin.stats()
        tensor = locked(pins, nbytes)
        assert pins.free_cpu_locked_tensor(tensor) is True
        assert pins.free_cpu_locked_tensor(tensor) is False
        assert pins.free_cpu_locked_tensor_by_ptr(tensor.data_ptr()) is False
        after = _deepnvme.pin.stats()
        assert (after["in_use"], after["regions"]) == (before["in_use"], before["regions"])
        del tensor


@SIZES
def test_by_pointer(nbytes: int) -> None:
    pins = aio.pin_handle()
    tensor = locked(pins, nbytes)
    assert pins.free_cpu_locked_tensor_by_ptr(tensor.data_ptr() + 1) is False
    assert pins.is_pinned(tensor)
    assert pins.free_cpu_locked_tensor_by_ptr(tensor.data_ptr()) is True
    assert not pins.is_pinned(tensor)
    assert pins.free_cpu_locked_tensor_by_ptr(tensor.data_ptr()) is False


@pytest.mark.parametrize("address", [0, 1, 4096, 2**47, 2**64 - 1])
def test_addresses_that_are_nobodys(address: int) -> None:
    assert aio.pin_handle().free_cpu_locked_tensor_by_ptr(address) is False


@SIZES
def test_through_another_handle(nbytes: int) -> None:
    """One registry: who made it does not matter."""
    with aio.aio_handle() as maker, aio.aio_handle() as other:
        tensor = locked(maker, nbytes)
        assert other.free_cpu_locked_tensor(tensor) is True
        assert maker.free_cpu_locked_tensor(tensor) is False


@SIZES
def test_two_threads_at_once(nbytes: int) -> None:
    """Exactly one of them freed it."""
    pins = aio.pin_handle()
    with counters():
        for _ in range(50):
            tensor = locked(pins, nbytes)
            start = threading.Barrier(2)
            answers: list[bool] = []

            def free(
                tensor: torch.Tensor = tensor,
                start: threading.Barrier = start,
                answers: list[bool] = answers,
            ) -> None:
                start.wait()
                answers.append(pins.free_cpu_locked_tensor(tensor))

            threads = [threading.Thread(target=free) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(answers) == [False, True]
            del tensor, free, thread, threads


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(1000),
        lambda: torch.empty(0),
        lambda: torch.tensor(3.5),
        lambda: torch.ones(1 << 20)[7:],
        lambda: torch.empty(10, device="meta"),
    ],
    ids=["plain", "empty", "0-dim", "slice", "meta"],
)
def test_what_was_never_pinned(make: Callable[[], torch.Tensor]) -> None:
    before = _deepnvme.pin.stats()
    assert aio.pin_handle().free_cpu_locked_tensor(make()) is False
    with aio.aio_handle() as handle:
        assert handle.free_cpu_locked_tensor(make()) is False
    assert _deepnvme.pin.stats() == before


@SIZES
def test_an_interior_view_frees_nothing(nbytes: int) -> None:
    pins = aio.pin_handle()
    tensor = locked(pins, nbytes).fill_(5)
    for view in (tensor[1:], tensor[4096:], tensor[-1:], tensor[::2][1:]):
        assert pins.free_cpu_locked_tensor(view) is False
        assert pins.is_pinned(tensor)
    assert pins.free_cpu_locked_tensor(tensor) is True


@SIZES
@pytest.mark.parametrize("name", ["view", "other dtype", "prefix", "detached"])
def test_a_view_at_the_base_frees_it(nbytes: int, name: str) -> None:
    """And the memory stays there for the aliases that live on."""
    pins = aio.pin_handle()
    tensor = locked(pins, nbytes).fill_(5)
    array = tensor.numpy()
    views = {
        "view": lambda: tensor.view(2, -1),
        "other dtype": lambda: tensor.view(torch.int32),
        "prefix": lambda: tensor[:10],
        "detached": lambda: tensor.detach(),
    }
    assert pins.free_cpu_locked_tensor(views[name]()) is True
    assert not pins.is_pinned(tensor)
    assert not pins.is_pinned(array)
    locked(pins, nbytes).fill_(9)
    assert bool((tensor == 5).all())
    assert np.all(array == 5)


@SIZES
def test_two_regions_do_not_share_a_fate(nbytes: int) -> None:
    """Redirected `.data`: the region that the tensor has now is freed, the former one is not."""
    pins = aio.pin_handle()
    first, second = locked(pins, nbytes).fill_(1), locked(pins, nbytes).fill_(2)
    alias = first.view(-1)
    first.data = second
    assert pins.free_cpu_locked_tensor(first) is True
    assert not pins.is_pinned(second)
    assert pins.is_pinned(alias)
    assert bool((alias == 1).all())
    assert pins.free_cpu_locked_tensor(alias) is True
