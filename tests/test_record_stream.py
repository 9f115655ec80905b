"""Memory of a copy in flight is neither reused nor unlocked, however early it is let go (D-07)."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import _deepnvme
from pinned_manager import (
    collect_streams,
    copy_to_device,
    copy_to_host,
    free_locked_tensor,
    new_locked_tensor,
    pinned_stats,
    record_stream,
)
from pinned_manager.device import device_of
from support.buffers import fill, pattern
from support.counters import status_kb
from support.fake_device import TYPE, FakeDevice, FakeTensor, empty, fake_device
from support.forks import expect_child_ok, fork_and

MIB = 1 << 20
SIZES = (4096, MIB)  # of a shared mapping, and of its own


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    """A device that carries nothing out before somebody waits for it."""
    with fake_device() as made:
        yield made
        made.bytes_of(empty(1))
        assert collect_streams() == 0


def pinned(nbytes: int, seed: int) -> torch.Tensor:
    tensor = new_locked_tensor(nbytes, torch.uint8, "test")
    fill(tensor, pattern(nbytes, seed))
    return tensor


def drop(tensor: torch.Tensor) -> None:
    """The caller's reference is the last one."""


def unpin(tensor: torch.Tensor) -> None:
    assert free_locked_tensor(tensor)


DROPS: list[Callable[[torch.Tensor], None]] = [drop, unpin]


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("nbytes", SIZES)
def test_source_is_dropped_during_the_copy(
    device: FakeDevice, nbytes: int, drop: Callable[[torch.Tensor], None]
) -> None:
    tensor = pinned(nbytes, 1)
    address = tensor.data_ptr()
    target = copy_to_device(tensor, TYPE)
    drop(tensor)
    del tensor
    gc.collect()
    others = [pinned(nbytes, seed) for seed in (2, 3)]
    assert device.copies == 0
    assert address not in [other.data_ptr() for other in others]
    assert device.bytes_of(target) == pattern(nbytes, 1)
    pinned_stats()  # enters
    assert collect_streams() == 0


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("nbytes", SIZES)
def test_record_makes_a_raw_copy_safe(device: FakeDevice, nbytes: int, recorded: bool) -> None:
    """Without the record the copy meets what comes next in the memory: the harness sees it."""
    tensor = pinned(nbytes, 1)
    target = empty(nbytes)
    device_of(target).copy(target, tensor)
    if recorded:  # a part of it stands for it
        record_stream(tensor[nbytes // 2 :], device.current_stream())
    del tensor
    gc.collect()
    other = pinned(nbytes, 2)
    assert device.bytes_of(target) == pattern(nbytes, 1 if recorded else 2)
    del other


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("nbytes", SIZES)
def test_target_is_dropped_during_the_copy(
    device: FakeDevice, nbytes: int, drop: Callable[[torch.Tensor], None]
) -> None:
    data = pattern(nbytes, 1)
    host = copy_to_host(FakeTensor(data), pinned(nbytes, 2))
    drop(host)
    del host
    gc.collect()
    other = pinned(nbytes, 3)
    device.bytes_of(empty(1))
    assert device.copies == 1
    assert bytes(other.numpy()) == pattern(nbytes, 3)


def test_pages_stay_locked_until_the_stream_is_done(device: FakeDevice) -> None:
    collect_streams()
    _deepnvme.pin.empty_cache()
    before = status_kb("VmLck")
    tensor = pinned(4 * MIB, 1)
    target = copy_to_device(tensor, TYPE)
    assert free_locked_tensor(tensor)
    del tensor
    _deepnvme.pin.empty_cache()
    assert status_kb("VmLck") - before == 4 * MIB // 1024
    assert device.bytes_of(target) == pattern(4 * MIB, 1)
    _deepnvme.pin.empty_cache()  # enters, and lets go
    assert status_kb("VmLck") == before


def test_ordinary_memory_is_held_too(device: FakeDevice) -> None:
    tensor = torch.frombuffer(bytearray(pattern(MIB)), dtype=torch.uint8).clone()
    target = copy_to_device(tensor, TYPE)
    del tensor
    gc.collect()
    others = [torch.zeros(MIB, dtype=torch.uint8) for _ in range(4)]
    assert device.bytes_of(target) == pattern(MIB)
    del others


def test_blocking_copies_hold_nothing(device: FakeDevice) -> None:
    tensor = pinned(MIB, 1)
    target = copy_to_device(tensor, TYPE, non_blocking=False)
    assert device.copies == 1
    assert collect_streams() == 0
    back = copy_to_host(target, torch.empty(MIB, dtype=torch.uint8), non_blocking=False)
    assert torch.equal(back, tensor)
    assert collect_streams() == 0


def test_a_copy_that_cannot_start_holds_nothing(device: FakeDevice) -> None:
    tensor = pinned(MIB, 1)
    with pytest.raises(ValueError, match="shape"):
        copy_to_host(empty(MIB), tensor[:5])
    device.fail_copies = 2
    with pytest.raises(RuntimeError):
        copy_to_device(tensor, TYPE)
    with pytest.raises(RuntimeError):
        copy_to_host(empty(MIB), tensor)
    assert collect_streams() == 0


def test_a_later_use_of_one_stream_replaces_the_earlier(device: FakeDevice) -> None:
    tensor = pinned(MIB, 1)
    for _ in range(50):
        record_stream(tensor, device.current_stream())
    assert collect_streams() == 1
    with device.stream():
        record_stream(tensor, device.current_stream())
        side = device.record_event()
    assert collect_streams() == 2
    device.record_event().synchronize()
    assert collect_streams() == 1
    side.synchronize()
    assert collect_streams() == 0


def test_a_later_use_lets_those_before_it_go(device: FakeDevice) -> None:
    first, second = pinned(MIB, 1), pinned(MIB, 2)
    record_stream(first, device.current_stream())
    record_stream(second, device.current_stream())
    over = device.record_event()
    record_stream(first, device.current_stream())
    over.synchronize()
    assert collect_streams() == 1
    device.bytes_of(empty(1))


def test_one_stream_does_not_wait_for_another(device: FakeDevice) -> None:
    slow, quick = pinned(MIB, 1), pinned(MIB, 2)
    record_stream(slow, device.current_stream())
    with device.stream():
        record_stream(quick, device.current_stream())
        device.record_event().synchronize()
    assert collect_streams() == 1
    device.bytes_of(empty(1))


def test_an_event_that_fails_keeps_the_memory(
    device: FakeDevice, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        fails = True

        def record_event(self) -> Broken:
            return self

        def query(self) -> bool:
            if self.fails:
                raise RuntimeError("device lost")
            return True

    stream = Broken()
    record_stream(pinned(MIB, 1), stream)
    assert collect_streams() == 1
    assert pinned_stats()["in_use"] >= MIB
    assert "device lost" in caplog.text
    stream.fails = False
    assert collect_streams() == 0


def test_the_cpu_needs_no_record() -> None:
    tensor = pinned(4096, 1)
    record_stream(tensor)
    record_stream(tensor, torch.cpu.current_stream())
    assert collect_streams() == 0
    copy = copy_to_device(tensor, "cpu")
    assert copy.data_ptr() != tensor.data_ptr()
    assert torch.equal(copy, tensor)
    assert torch.equal(copy_to_host(tensor, torch.empty_like(tensor)), tensor)
    assert torch.equal(copy_to_host(tensor), tensor)
    with pytest.raises(TypeError, match="meta"):
        copy_to_device(tensor, "meta")
    with pytest.raises(RuntimeError):
        copy_to_device(tensor, "no such device")


def test_device_memory_is_its_allocators_business(device: FakeDevice) -> None:
    recorded: list[Any] = []

    class Recording(FakeTensor):
        def record_stream(self, stream: Any) -> None:
            recorded.append(stream)

    tensor: Any = Recording(bytes(100))
    with device.stream():
        record_stream(tensor)
        current = device.current_stream()
    record_stream(tensor, "another stream")
    assert recorded == [current, "another stream"]
    assert collect_streams() == 0


def test_a_forked_child_asks_no_event_of_the_parent(device: FakeDevice) -> None:
    tensor = pinned(MIB, 1)
    record_stream(tensor, device.current_stream())

    def child() -> None:
        def never(self: object) -> bool:
            raise AssertionError("the parent's event was asked")

        device.record_event().__class__.query = never  # type: ignore[method-assign]
        assert collect_streams() == 0
        new_locked_tensor(MIB, torch.uint8)
        _deepnvme.pin.empty_cache()

    expect_child_ok(fork_and(child))
    assert collect_streams() == 1
    device.bytes_of(empty(1))


def test_threads_that_share_a_stream(device: FakeDevice) -> None:
    copies: list[tuple[Any, bytes]] = []
    failures: list[BaseException] = []

    def copy_and_drop(first: int) -> None:
        try:
            for seed in range(first, first + 25):
                tensor = pinned(SIZES[seed % 2], seed)
                copies.append((copy_to_device(tensor, TYPE), pattern(tensor.nbytes, seed)))
                record_stream(tensor, device.current_stream())
                if seed % 5 == 0:
                    device.record_event().synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=copy_and_drop, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [device.bytes_of(target) == data for target, data in copies] == [True] * 100


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(SIZES), st.sampled_from(["drop", "unpin", "keep"]), st.booleans()
        ),
        max_size=12,
    )
)
def test_any_order(steps: list[tuple[int, str, bool]]) -> None:
    with fake_device() as device:
        copies: list[tuple[FakeTensor, bytes]] = []
        kept = []
        for seed, (nbytes, end, drains) in enumerate(steps):
            tensor = pinned(nbytes, seed)
            copies.append((copy_to_device(tensor, TYPE), pattern(nbytes, seed)))
            if end == "unpin":
                unpin(tensor)
            if end == "keep":
                kept.append(tensor)
            del tensor
            if drains:
                device.bytes_of(empty(1))
        for target, data in copies:
            assert device.bytes_of(target) == data
        assert collect_streams() == 0
