"""Device tensors go through pinned blocks: right bytes however late the device's copies are."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.buffers import pattern, tensor_of
from support.counters import PATIENCE_S
from support.fake_device import BLOCK, FakeDevice, FakeTensor, empty
from support.files import FileModel, contents

pytest_plugins = ["support.device_fixtures"]

SIZES = st.one_of(
    st.integers(0, 3 * BLOCK),
    st.builds(lambda blocks, more: blocks * BLOCK + more, st.integers(1, 9), st.integers(-1, 1)),
)


@pytest.fixture
def handle(make_handle: Any) -> Any:
    return make_handle(block_size=4096)


def wait_for_one(handle: Any) -> None:
    assert handle.wait() == 1


def by_await(submit: Callable[..., Any], *arguments: Any) -> int:
    async def wait() -> int:
        moved: int = await submit(*arguments)
        return moved

    return asyncio.run(wait())


def by_callback(future: Any) -> int:
    called: queue.SimpleQueue[Any] = queue.SimpleQueue()
    future.add_done_callback(called.put)
    assert called.get(timeout=PATIENCE_S) is future
    moved: int = future.result()
    return moved


def by(handle: Any, form: str, verb: str) -> Any:
    """The method of `handle` that writes or reads: by(h, "sync_p*", "write") is h.sync_pwrite."""
    return getattr(handle, form.replace("*", verb))


# Every way to write and to read; each returns once the bytes have moved.
WAYS: dict[str, Callable[[Any, str, FakeTensor, Path, int], Any]] = {
    "sync": lambda h, verb, t, p, at: by(h, "sync_p*", verb)(t, p, at),
    "plain": lambda h, verb, t, p, at: by(h, "*", verb)(t, str(p), False, at),
    "validate": lambda h, verb, t, p, at: by(h, "*", verb)(t, p, True, at),
    "async": lambda h, verb, t, p, at: (by(h, "async_p*", verb)(t, p, at), wait_for_one(h)),
    "async validate": lambda h, verb, t, p, at: (
        by(h, "p*", verb)(t, p, True, True, at),
        wait_for_one(h),
    ),
    "future": lambda h, verb, t, p, at: by(h, "submit_p*", verb)(t, p, at).result(),
    "callback": lambda h, verb, t, p, at: by_callback(by(h, "submit_p*", verb)(t, p, at)),
    "await": lambda h, verb, t, p, at: by_await(by(h, "submit_p*", verb), t, p, at),
    "many": lambda h, verb, t, p, at: by(h, "p*_many", verb)([(t, p, at)]),
    "many by future": lambda h, verb, t, p, at: by(h, "submit_p*_many", verb)(
        [(t, p, at)]
    ).result(),
}
by_every_way = pytest.mark.parametrize("way", WAYS)
of_any_request = given(nbytes=SIZES, offset=st.integers(0, 9000), step=st.sampled_from([1, 1, 3]))


@by_every_way
@of_any_request
def test_written_bytes(
    disk: Path, device: FakeDevice, handle: Any, way: str, nbytes: int, offset: int, step: int
) -> None:
    path = disk / "file"
    path.write_bytes(pattern(5000))
    model = FileModel(pattern(5000))
    data = pattern(nbytes, seed=1)
    tensor = FakeTensor(bytes(nbytes), step)
    with device.stream():
        # The values are still to come when the request is made: it has to wait for them.
        device.launch(lambda: tensor.elements.__setitem__(slice(None), list(data)))
        WAYS[way](handle, "write", tensor, path, offset)
    model.write(offset, data)
    assert contents(path) == model.content()
    assert handle.wait() == 0


@by_every_way
@of_any_request
def test_read_bytes(
    disk: Path, device: FakeDevice, handle: Any, way: str, nbytes: int, offset: int, step: int
) -> None:
    path = disk / "file"
    data = pattern(offset + nbytes + 1)
    path.write_bytes(data)
    tensor = empty(nbytes, step)
    with device.stream():
        # What is still to be done to the tensor comes before what the file says.
        device.launch(lambda: tensor.memory.fill(0xEE))
        WAYS[way](handle, "read", tensor, path, offset)
        # With no more waiting: once the call is over the bytes are there.
        assert tensor.elements.tobytes() == data[offset : offset + nbytes]
        assert device.bytes_of(tensor) == data[offset : offset + nbytes]
    between = tensor.memory.reshape(-1, step)[:, 1:]
    assert (between == 0xEE).all()
    assert handle.wait() == 0


def test_nothing_is_written_before_it_is_copied(
    disk: Path, device: FakeDevice, handle: Any
) -> None:
    path = disk / "file"
    tensor = empty(20 * BLOCK)
    device.hold()
    handle.async_pwrite(tensor, path)
    future = handle.submit_pwrite(tensor, disk / "other")
    tensor.elements[:] = list(pattern(20 * BLOCK))  # the last moment
    device.until_asked()
    assert contents(path) == b""
    assert not future.done()
    with pytest.raises(TimeoutError):
        future.result(timeout=0)
    device.let_go()
    assert handle.wait() == 1
    assert contents(path) == pattern(20 * BLOCK)
    assert future.result() == 20 * BLOCK
    assert future.done()
    assert contents(disk / "other") == pattern(20 * BLOCK)


def test_several_in_flight(disk: Path, device: FakeDevice, handle: Any) -> None:
    count = 12
    data = [pattern(number * 2000, seed=number) for number in range(count)]
    tensors = [FakeTensor(one) for one in data]
    for number, tensor in enumerate(tensors):
        handle.async_pwrite(tensor, disk / f"{number}", number)
    assert handle.wait() == count
    assert handle.wait() == 0
    back = [empty(len(one)) for one in data]
    futures = []
    for number, tensor in enumerate(back):
        if number % 2:
            handle.async_pread(tensor, disk / f"{number}", number)
        else:
            futures.append(handle.submit_pread(tensor, disk / f"{number}", number))
    assert sum(future.result() for future in futures) == sum(len(one) for one in data[::2])
    assert handle.wait() == count // 2
    for number, tensor in enumerate(back):
        assert tensor.elements.tobytes() == data[number]
        assert contents(disk / f"{number}") == bytes(number if data[number] else 0) + data[number]


def test_host_and_device_tensors_are_counted_together(
    disk: Path, device: FakeDevice, handle: Any
) -> None:
    data = pattern(3 * BLOCK)
    for number in range(6):
        tensor = FakeTensor(data) if number % 2 else tensor_of(data)
        handle.async_pwrite(tensor, disk / f"{number}")
    assert handle.wait() == 6
    assert handle.wait() == 0
    host, there = torch.zeros(len(data), dtype=torch.uint8), empty(len(data))
    assert handle.pread_many([(host, disk / "0"), (there, disk / "1")]) == 2
    assert host.numpy().tobytes() == data
    assert there.elements.tobytes() == data
    assert all(contents(disk / f"{number}") == data for number in range(6))


def test_an_interrupted_wait_loses_no_count(disk: Path, device: FakeDevice, handle: Any) -> None:
    """Ctrl-C while the host's requests are waited for: the device's are counted by the next."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    handle.async_pwrite(FakeTensor(b"abc"), disk / "device")
    handle.async_pwrite(b"abc", disk / "host")
    with pytest.raises(KeyboardInterrupt):
        handle._devices.wait(interrupted)
    assert handle.wait() == 2
