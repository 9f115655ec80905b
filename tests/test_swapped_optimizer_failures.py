"""A transfer that fails in step(): who, where, why, and no state is lost (G-02, G-13)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from aio.swap import SwappedOptimizer, SwapStepError, SwapStore
from support.broken_store import broken_file
from support.pinning import no_more_pins
from support.swapped import give_gradients, made_parameters, parameter_bits, state_bits, twins

pytestmark = pytest.mark.usefixtures("one_thread")

COUNT = 5
EXTENT = 32 << 10  # bytes: of two float32 numbers for each of 4000 elements, in whole blocks


class Training:
    """A swapped optimizer and the plain one, of which the swapped one may fail."""

    def __init__(self, store: SwapStore, cache_bytes: int = 0) -> None:
        self.plain_params = made_parameters(*[(4000,)] * COUNT)
        self.params = twins(self.plain_params)
        self.plain = torch.optim.Adam(self.plain_params)
        named = [(f"layer.{index}", param) for index, param in enumerate(self.params)]
        self.swapped = SwappedOptimizer(
            named, torch.optim.Adam, swap_dir=store, sub_group_bytes=1, cache_bytes=cache_bytes
        )
        self.store = store

    def gradients(self, step: int) -> None:
        give_gradients(self.params, step)
        give_gradients(self.plain_params, step)

    def step(self, step: int) -> None:
        self.gradients(step)
        self.swapped.step()
        self.plain.step()

    def check(self) -> None:
        assert parameter_bits(self.params) == parameter_bits(self.plain_params)
        assert state_bits(self.swapped) == state_bits(self.plain)


@pytest.fixture
def training(disk: Path, make_handle: Callable[..., Any]) -> Iterator[Training]:
    with SwapStore(disk, make_handle()) as store:
        yield Training(store)


def test_a_failed_read(training: Training) -> None:
    for step in range(2):
        training.step(step)
    before = state_bits(training.swapped)
    training.gradients(2)
    with broken_file(training.store) as path, pytest.raises(SwapStepError) as caught:
        training.swapped.step()
    error = caught.value
    assert isinstance(error.__cause__, aio.AioError)
    assert (error.operation, error.errno, error.filename) == ("read", errno.EISDIR, path)
    # The first one in the order was in the slot that is idle between steps.
    assert error.parameters == ["'layer.1'"]
    assert error.updated == ["'layer.0'"]
    assert error.not_updated == [f"'layer.{index}'" for index in range(1, COUNT)]
    for part in ("'layer.1'", "old ones", "finish_step", path):
        assert part in str(error)
    training.plain.step()
    after = state_bits(training.plain)
    assert state_bits(training.swapped) == {0: after[0], **{i: before[i] for i in range(1, COUNT)}}
    training.swapped.finish_step()
    training.check()
    training.swapped.finish_step()  # nothing is left to do
    training.check()
    training.step(3)
    training.check()


def let_second_write_fail(monkeypatch: Any) -> None:
    submit, calls = aio.aio_handle.submit_pwrite_many, []

    def second_fails(handle: Any, items: Any) -> Any:
        calls.append(items)
        if len(calls) == 2:
            raise aio.AioError(errno.EIO, "the drive is gone", "the file")
        return submit(handle, items)

    monkeypatch.setattr(aio.aio_handle, "submit_pwrite_many", second_fails)


def test_a_failed_write(training: Training, monkeypatch: Any) -> None:
    training.step(0)
    let_second_write_fail(monkeypatch)
    training.gradients(1)
    with pytest.raises(SwapStepError) as caught:
        training.swapped.step()
    monkeypatch.undo()
    error = caught.value
    assert (error.operation, error.errno, error.filename) == ("write", errno.EIO, "the file")
    assert "new ones, kept in memory" in str(error)
    assert set(error.parameters) <= set(error.updated)
    assert 0 < len(error.updated) < COUNT
    assert sorted(error.updated + error.not_updated) == [f"'layer.{i}'" for i in range(COUNT)]
    training.plain.step()
    after = state_bits(training.plain)
    mine = state_bits(training.swapped)
    for label in error.updated:
        index = int(label.strip("'").removeprefix("layer."))
        assert mine[index] == after[index]
    training.swapped.finish_step()
    training.check()
    for step in range(2, 4):
        training.step(step)
        training.check()


def test_writes_that_fail_for_several_steps_lose_nothing(training: Training) -> None:
    for step in range(2):
        training.step(step)
    training.gradients(2)
    training.plain.step()
    with broken_file(training.store):
        with pytest.raises(SwapStepError):
            training.swapped.step()
        for _ in range(3):
            with pytest.raises(SwapStepError):
                training.swapped.finish_step()
    training.swapped.finish_step()
    training.check()
    training.step(3)
    training.check()
    stats = training.swapped.stats()
    assert stats["cached_bytes"] == EXTENT
    assert stats["peak_buffer_bytes"] <= 3 * EXTENT


def test_writes_that_go_on_failing_do_not_fill_memory(training: Training, monkeypatch: Any) -> None:
    for step in range(2):
        training.step(step)
    training.gradients(2)
    training.plain.step()

    def fails(handle: Any, items: Any) -> Any:
        raise aio.AioError(errno.EIO, "the drive is gone", "the file")

    monkeypatch.setattr(aio.aio_handle, "submit_pwrite_many", fails)
    with pytest.raises(SwapStepError):
        training.swapped.step()
    for _ in range(4):
        with pytest.raises(SwapStepError, match="write"):
            training.swapped.finish_step()
    assert training.swapped.stats()["peak_buffer_bytes"] <= 3 * EXTENT
    monkeypatch.undo()
    training.swapped.finish_step()
    training.check()


def test_a_step_after_one_that_has_failed(training: Training, monkeypatch: Any) -> None:
    """It is not finished: parameters that were not updated have missed it. What was kept in memory
    makes room for what comes first, and is read again when it is its turn.
    """
    each = [torch.optim.Adam([param]) for param in training.plain_params]

    def model_step(labels: Any) -> None:
        for index in range(COUNT):
            if f"'layer.{index}'" in labels:
                each[index].step()

    everything = [f"'layer.{index}'" for index in range(COUNT)]
    for step in range(2):
        training.gradients(step)
        training.swapped.step()
        model_step(everything)

    def fails(handle: Any, items: Any) -> Any:
        raise aio.AioError(errno.EIO, "the drive is gone", "the file")

    training.gradients(2)
    with monkeypatch.context() as patch:
        patch.setattr(aio.aio_handle, "submit_pwrite_many", fails)
        for attempt in (training.swapped.step, training.swapped.finish_step):
            with pytest.raises(SwapStepError) as caught:
                attempt()
            model_step(caught.value.updated)
    assert training.swapped.stats()["cached_bytes"] == 3 * EXTENT  # there is no room for more
    training.gradients(3)
    training.swapped.step()
    model_step(everything)
    assert parameter_bits(training.params) == parameter_bits(training.plain_params)
    mine = state_bits(training.swapped)
    assert mine == {index: state_bits(each[index])[0] for index in range(COUNT)}
    assert training.swapped.stats()["peak_buffer_bytes"] <= 3 * EXTENT


@pytest.mark.parametrize("method", ["submit_pread_many", "submit_pwrite_many"])
def test_a_transfer_that_fails_without_a_system_call(
    training: Training, monkeypatch: Any, method: str
) -> None:
    """It is raised as it is, and finish_step() does the rest all the same."""
    for step in range(2):
        training.step(step)
    training.gradients(2)
    training.plain.step()
    submit, calls = getattr(aio.aio_handle, method), []

    def second_fails(handle: Any, items: Any) -> Any:
        calls.append(items)
        if len(calls) == 2:
            raise MemoryError("no memory for requests")
        return submit(handle, items)

    monkeypatch.setattr(aio.aio_handle, method, second_fails)
    with pytest.raises(MemoryError, match="for requests"):
        training.swapped.step()
    assert training.store.stats()["in_flight"] == 0
    training.swapped.finish_step()
    training.check()
    training.step(3)
    training.check()


def test_a_read_that_cannot_be_started(training: Training, monkeypatch: Any) -> None:
    """Its buffer is not lost, or later steps could read less ahead."""
    for step in range(2):
        training.step(step)
    training.gradients(2)
    training.plain.step()
    frames = training.swapped._pipeline.frames
    before = frames.used_bytes
    get, calls = training.store.get, []

    def second_fails(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError("no memory for an operation")
        return get(*arguments)

    monkeypatch.setattr(training.store, "get", second_fails)
    with pytest.raises(MemoryError, match="for an operation"):
        training.swapped.step()
    # Besides the slot that is idle between steps, one for what it has updated and not written.
    assert frames.used_bytes == training.swapped.stats()["cached_bytes"] <= before + EXTENT
    training.swapped.finish_step()
    assert frames.used_bytes == before
    training.check()
    calls[1:] = []
    with pytest.raises(MemoryError, match="for an operation"):
        training.swapped.state_dict()
    assert frames.used_bytes == before
    training.check()


def test_without_memory_that_can_be_locked(training: Training) -> None:
    with no_more_pins():
        for step in range(3):
            training.step(step)
        training.check()


def test_a_full_disk_at_the_first_step(disk: Path, make_handle: Any, monkeypatch: Any) -> None:
    from aio.swap.segments import SegmentFiles

    with SwapStore(disk, make_handle()) as store:
        training = Training(store)
        monkeypatch.setattr(SegmentFiles, "allocate", lambda files, nbytes: None)
        training.gradients(0)
        with pytest.raises(SwapStepError, match="needs 32768 bytes") as caught:
            training.swapped.step()
        assert caught.value.errno == errno.ENOSPC
        assert isinstance(caught.value.__cause__, OSError)
        monkeypatch.undo()
        training.swapped.finish_step()
        training.plain.step()
        training.check()


def test_after_a_failure_a_checkpoint_can_be_loaded(training: Training, disk: Path) -> None:
    for step in range(2):
        training.step(step)
    training.swapped.save(disk / "checkpoint")
    saved = twins(training.params)
    with broken_file(training.store), pytest.raises(SwapStepError):
        training.swapped.step()
    training.swapped.load(disk / "checkpoint")
    for param, old in zip(training.params, saved, strict=True):
        param.data.copy_(old)
    training.check()
    training.step(2)
    training.check()


def test_a_load_that_fails_changes_nothing(
    training: Training, disk: Path, monkeypatch: Any
) -> None:
    training.step(0)
    training.swapped.save(disk / "checkpoint")
    training.step(1)
    before = training.store.names()
    let_second_write_fail(monkeypatch)
    with pytest.raises(aio.AioError):
        training.swapped.load(disk / "checkpoint")
    monkeypatch.undo()
    training.check()
    assert training.store.names() == before
    training.step(2)
    training.check()


class Sulky(torch.optim.Adam):
    """Fails at its third call."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        Sulky.calls += 1
        if Sulky.calls == 3:
            raise ArithmeticError("enough")
        return super().step(closure)


def test_an_optimizer_that_raises(disk: Path) -> None:
    params = made_parameters(*[(4000,)] * COUNT)
    with SwappedOptimizer(params, Sulky, swap_dir=disk, sub_group_bytes=1) as swapped:
        Sulky.calls = 0
        give_gradients(params, 0)
        with pytest.raises(ArithmeticError, match="enough"):
            swapped.step()
        assert len(swapped.state) == 2
        swapped.finish_step()
        assert len(swapped.state) == COUNT


@pytest.mark.parametrize("at", range(COUNT))
@pytest.mark.parametrize("later", [False, True])
def test_a_load_that_fails_gives_its_buffers_back(
    training: Training, monkeypatch: pytest.MonkeyPatch, at: int, later: bool
) -> None:
    """When it starts to write a sub-group, or when that has failed: else steps would have less room
    to read ahead after each.
    """
    training.step(0)
    loaded = training.swapped.state_dict()
    pipeline: Any = training.swapped._pipeline
    before, put = pipeline.frames.used_bytes, training.store.put
    failure = aio.AioError(errno.EIO, "the drive is gone")
    puts = iter(range(COUNT))

    def fail_once(*arguments: Any) -> Any:
        if next(puts) != at:
            return put(*arguments)
        if not later:
            raise failure
        future: Future[int] = Future()
        future.set_exception(failure)
        return future

    monkeypatch.setattr(training.store, "put", fail_once)
    with pytest.raises(aio.AioError, match="drive is gone"):
        training.swapped.load_state_dict(loaded)
    assert pipeline.frames.used_bytes == before
