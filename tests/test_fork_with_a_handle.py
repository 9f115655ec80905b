"""An inherited handle raises at once in a forked child, and the parent goes on (D-04, E-06)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import _deepnvme
import aio
from support.buffers import locked, pattern, raw, tensor_of
from support.counters import status_kb
from support.forks import expect_child_ok, fork_and

NBYTES = 300_001


# The children leave large operations to numpy: torch's threads are not theirs, and it would wait.
def expect_refused(call: Callable[[], Any]) -> None:
    try:
        call()
    except RuntimeError as error:
        if "fork" not in str(error):
            raise AssertionError(f"does not say why: {error}") from error
    else:
        raise AssertionError("an inherited handle was used")


def test_every_use_is_refused(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend, intra_op_parallelism=2)
    path = directory / "file"
    handle.sync_pwrite(tensor_of(pattern(NBYTES)), path)
    future = handle.submit_pread(torch.empty(NBYTES, dtype=torch.uint8), path)
    handle.async_pwrite(tensor_of(pattern(NBYTES, 1)), directory / "pending")

    def child() -> None:
        buffer = torch.zeros(1000, dtype=torch.uint8)
        fresh = directory / "fresh"
        for call in (
            lambda: handle.sync_pread(buffer, path),
            lambda: handle.sync_pwrite(buffer, fresh),
            lambda: handle.async_pread(buffer, path),
            lambda: handle.async_pwrite(buffer, fresh),
            lambda: handle.pread(buffer, path, False, True),
            lambda: handle.write(buffer, fresh, False),
            lambda: handle.submit_pwrite(buffer, fresh),
            lambda: handle.pwrite_many([(buffer, fresh)]),
            lambda: handle.submit_pread_many([(buffer, path)]),
            handle.wait,
        ):
            expect_refused(call)
        expect_refused(future.done)
        expect_refused(future.result)
        expect_refused(lambda: future.add_done_callback(print))
        assert not fresh.exists()
        assert raw(buffer) == bytes(1000)

    pid = fork_and(child)
    assert handle.wait() == 1
    expect_child_ok(pid)
    assert future.result() == NBYTES
    assert (directory / "pending").read_bytes() == pattern(NBYTES, 1)
    assert handle.sync_pwrite(tensor_of(pattern(NBYTES, 2)), path) == 1
    assert path.read_bytes() == pattern(NBYTES, 2)


@pytest.mark.parametrize("how", ["close", "del", "with"])
def test_destroying_it_does_nothing(
    directory: Path, backend: str, make_handle: Any, how: str
) -> None:
    """With requests in flight in the parent, whose files must be whole all the same."""
    box = [aio.aio_handle(backend=backend, intra_op_parallelism=2)]
    for index in range(20):
        box[0].async_pwrite(tensor_of(pattern(NBYTES, index)), directory / f"{index}")

    def child() -> None:
        if how == "close":
            box[0].close()
        elif how == "with":
            box[0].__exit__(None, None, None)
        box.clear()
        gc.collect()

    for _ in range(3):
        expect_child_ok(fork_and(child))
    assert box[0].wait() == 20
    for index in range(20):
        assert (directory / f"{index}").read_bytes() == pattern(NBYTES, index)
    box[0].close()


def test_a_child_makes_its_own(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    handle.sync_pwrite(tensor_of(pattern(NBYTES)), directory / "file")

    def child() -> None:
        own = aio.aio_handle(backend=backend)
        back = locked(own, NBYTES)
        assert own.sync_pread(back, directory / "file") == 1
        assert back.numpy().tobytes() == pattern(NBYTES)
        own.async_pwrite(back, directory / "of the child")
        own.close()

    expect_child_ok(fork_and(child))
    assert (directory / "of the child").read_bytes() == pattern(NBYTES)
    assert handle.sync_pwrite(b"x", directory / "file") == 1


@pytest.mark.parametrize("nbytes", [5000, 8 << 20])
def test_inherited_pinned_memory_is_ordinary(make_handle: Any, nbytes: int) -> None:
    """Locks are not inherited: not pinned and not counted in the child, and still readable."""
    handle = make_handle()
    tensor = locked(handle, nbytes).fill_(7)
    in_use = _deepnvme.pin.stats()["in_use"]

    def child() -> None:
        pins = aio.pin_handle()
        assert not pins.is_pinned(tensor)
        assert not pins.free_cpu_locked_tensor(tensor)
        stats = _deepnvme.pin.stats()
        assert (stats["in_use"], stats["cached"], stats["regions"]) == (0, 0, 0)
        assert status_kb("VmLck") == 0
        assert tensor.numpy().tobytes() == bytes([7]) * nbytes
        own = locked(pins, nbytes)
        assert pins.is_pinned(own)
        assert own.data_ptr() != tensor.data_ptr()
        own.numpy()[:] = 8
        assert tensor.numpy().tobytes() == bytes([7]) * nbytes

    expect_child_ok(fork_and(child))
    assert handle.is_pinned(tensor)
    assert _deepnvme.pin.stats()["in_use"] == in_use
    assert raw(tensor) == bytes([7]) * nbytes


def test_views_dropped_in_the_child(make_handle: Any) -> None:
    """The deleters run in the child too, and give nothing to a pool that is not theirs."""
    handle = make_handle()
    box = [locked(handle, nbytes).fill_(7) for nbytes in (100, 5000, 8 << 20)]

    def child() -> None:
        box.clear()
        gc.collect()
        _deepnvme.pin.empty_cache()
        pins = aio.pin_handle()
        own = locked(pins, 5000)
        own.numpy()[:] = 1
        assert own.numpy().tobytes() == b"\x01" * 5000

    expect_child_ok(fork_and(child))
    for tensor in box:
        assert bool((tensor == 7).all())
        assert handle.is_pinned(tensor)
