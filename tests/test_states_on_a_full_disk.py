"""States that cannot be written stay in memory, intact, and those that cannot be read stay in their
file (G-02, A-01).
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import _deepnvme
import aio
import pinned_manager.states.nvme as nvme
from pinned_manager import PinError
from pinned_manager.states import host, offload_states, reload_states
from support.counters import counters, until
from support.mounts import ext4_image, small_tmpfs
from support.states import bytes_of, picture, tensors_of

MIB = 1 << 20


def training(count: int = 12, nbytes: int = MIB) -> torch.optim.Optimizer:
    parameters = [torch.nn.Parameter(torch.randn(nbytes // 4)) for _ in range(count)]
    parameters[0].grad = torch.ones_like(parameters[0])
    return torch.optim.SGD(parameters)


def free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bfree * found.f_frsize


@pytest.mark.parametrize("make", [small_tmpfs, ext4_image])
def test_a_full_disk(tmp_path: Path, make: Any) -> None:
    optimizer = training()
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    with make(tmp_path / "small", 10 * MIB) as small:
        with counters():
            for _ in range(2):
                with pytest.raises(aio.AioError) as raised:
                    offload_states(optimizer, device="nvme", nvme_path=small)
        error = raised.value
        assert error.errno == errno.ENOSPC
        assert error.filename is not None
        assert Path(error.filename).parent == small
        assert error.nbytes == bytes_of(tensors)
        assert f"needs {error.nbytes} bytes" in str(error)
        assert "bytes in " in str(error)
        assert str(small) in str(error)
        del error, raised
        assert picture(tensors) == before
        assert {name: tensor.data_ptr() for name, tensor in tensors.items()} == addresses
        assert [file for file in small.iterdir() if file.is_file()] == []
        # A smaller part fits now: the failed ones have given their room back.
        until(lambda: free_bytes(small) > 5 * MIB, "the room of the failed file free again")
        offload_states(optimizer, ["lp_grads"], "nvme", nvme_path=small)
        assert tensors["gradient 0"].numel() == 0
        reload_states(optimizer)
        assert picture(tensors) == before


def test_a_full_disk_leaves_host_memory(tmp_path: Path) -> None:
    """What is offloaded to host memory already stays there."""
    optimizer = training()
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    offload_states(optimizer)
    away = picture(tensors)
    with (
        small_tmpfs(tmp_path / "small", 4 * MIB) as small,
        pytest.raises(aio.AioError, match="still in memory"),
    ):
        offload_states(optimizer, device="nvme", nvme_path=small)
    assert picture(tensors) == away
    reload_states(optimizer)
    assert picture(tensors) == before


class Failing:
    """A handle whose calls raise as many times as there are failures left."""

    failures: list[BaseException]

    def __init__(self) -> None:
        self._handle = aio.aio_handle()

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *exception: object) -> None:
        self._handle.__exit__(*exception)

    def pwrite_many(self, items: list[Any]) -> int:
        return self._do(self._handle.pwrite_many, items)

    def pread_many(self, items: list[Any]) -> int:
        return self._do(self._handle.pread_many, items)

    def _do(self, call: Any, items: list[Any]) -> int:
        if not self.failures:
            done: int = call(items)
            return done
        call(items[: len(items) // 2])
        raise self.failures.pop()


def failures() -> list[BaseException]:
    return [
        aio.AioError(errno.EIO, "the drive is broken", "/proc/self/fd/3"),
        KeyboardInterrupt(),
        RuntimeError("no engine"),
        MemoryError(),
    ]


def test_writes_that_fail(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = training(3, 5000)
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    monkeypatch.setattr(nvme, "_new_handle", lambda directories: Failing())
    with counters():
        for failure in failures():
            Failing.failures = [failure]
            with pytest.raises(type(failure)):
                offload_states(optimizer, device="nvme", nvme_path=disk)
            assert picture(tensors) == before
        del failure
    offload_states(optimizer, device="nvme", nvme_path=disk)
    reload_states(optimizer)
    assert picture(tensors) == before


@pytest.mark.parametrize("to_host", [False, True])
def test_reads_that_fail_can_be_repeated(
    disk: Path, monkeypatch: pytest.MonkeyPatch, to_host: bool
) -> None:
    optimizer = training(3, 5000)
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    offload_states(optimizer, device="nvme", nvme_path=disk)
    away = picture(tensors)
    monkeypatch.setattr(nvme, "_new_handle", lambda directories: Failing())
    read = offload_states if to_host else reload_states
    for failure in failures():
        Failing.failures = [failure]
        with pytest.raises(type(failure)) as raised:
            read(optimizer)
        if isinstance(raised.value, aio.AioError):
            assert raised.value.errno == errno.EIO
            assert "still offloaded" in str(raised.value)
        assert picture(tensors) == away
    reload_states(optimizer)
    assert picture(tensors) == before


def test_memory_that_cannot_be_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle: what has moved by then moves back."""
    optimizer = training(4, 5000)
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    allocate, left = host.host_octets, 3

    def few(nbytes: int, pinned: bool) -> torch.Tensor:
        nonlocal left
        left -= pinned
        if pinned and left < 0:
            raise PinError("no more")
        return allocate(nbytes, pinned)

    monkeypatch.setattr(host, "host_octets", few)
    in_use = _deepnvme.pin.stats()["in_use"]
    with pytest.raises(PinError):
        offload_states(optimizer)
    assert picture(tensors) == before
    assert _deepnvme.pin.stats()["in_use"] == in_use
    left = 1000
    offload_states(optimizer)
    reload_states(optimizer)
    assert picture(tensors) == before


class Interrupting:
    """torch.empty, which is called again and again during a move, with Ctrl-C at one of the
    calls.
    """

    def __init__(self, at: int) -> None:
        self._empty = torch.empty
        self._left = at

    def __call__(self, *arguments: Any, **options: Any) -> torch.Tensor:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return self._empty(*arguments, **options)


@pytest.fixture
def heard_interrupts() -> Iterator[None]:
    """A test that runs in the background of a shell finds the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("reloading", [False, True])
def test_interrupts_at_any_moment(
    heard_interrupts: None, monkeypatch: pytest.MonkeyPatch, reloading: bool
) -> None:
    """Ctrl-C waits until a storage and all tensors on it are in one place."""
    base = torch.randn(100)
    parameters = [torch.nn.Parameter(base[start:]) for start in range(4)]
    parameters += [torch.nn.Parameter(torch.randn(10)) for _ in range(3)]
    optimizer = torch.optim.SGD(parameters)
    del base
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    interrupted = 0
    for at in range(1, 60):
        if reloading:
            offload_states(optimizer)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", Interrupting(at))
            try:
                reload_states(optimizer) if reloading else offload_states(optimizer)
            except KeyboardInterrupt:
                interrupted += 1
                shared = [seen.shares_with for seen in picture(tensors).values()]
                assert shared == [seen.shares_with for seen in before.values()]
                assert reloading or picture(tensors) == before
        reload_states(optimizer)
        assert picture(tensors) == before
    assert 10 < interrupted < 59  # not before each of its storages, and the last ones not at all


def test_an_interrupt_is_heard_soon(
    heard_interrupts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the storage that it comes in, not after all of them."""
    optimizer = training(5, 5000)
    calls = _deepnvme.pin.stats()["calls"]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", Interrupting(8))
        with pytest.raises(KeyboardInterrupt):
            offload_states(optimizer)
    assert _deepnvme.pin.stats()["calls"] == calls + 1
