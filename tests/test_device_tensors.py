"""Device tensors go through pinned blocks: right bytes however late copies are, errors told once,
everything given back.
"""

from __future__ import annotations

import asyncio
import errno
import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aio
import aio.device_transfer as device_transfer
from support.buffers import pattern, tensor_of
from support.counters import PATIENCE_S, counters
from support.fake_device import FakeDevice, FakeTensor, FakeType, fake_device
from support.files import FileModel, contents
from support.mounts import small_tmpfs

BLOCK = 4096 + 512  # of the blocks between device and file, here
SIZES = st.one_of(
    st.integers(0, 3 * BLOCK),
    st.builds(lambda blocks, more: blocks * BLOCK + more, st.integers(1, 9), st.integers(-1, 1)),
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_transfer, "BLOCK_BYTES", BLOCK)


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with fake_device() as made:
        yield made


@pytest.fixture
def handle(make_handle: Any) -> Any:
    return make_handle(block_size=4096)


def empty(nbytes: int, step: int = 1) -> FakeTensor:
    return FakeTensor(bytes(nbytes), step)


# ---- every way to write and to read; each returns once the bytes have moved ----


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


WRITES: dict[str, Callable[[Any, FakeTensor, Path, int], Any]] = {
    "sync": lambda h, t, p, at: h.sync_pwrite(t, p, at),
    "write": lambda h, t, p, at: h.write(t, str(p), False, at),
    "validate": lambda h, t, p, at: h.write(t, p, True, at),
    "async": lambda h, t, p, at: (h.async_pwrite(t, p, at), wait_for_one(h)),
    "async validate": lambda h, t, p, at: (h.pwrite(t, p, True, True, at), wait_for_one(h)),
    "future": lambda h, t, p, at: h.submit_pwrite(t, p, at).result(),
    "callback": lambda h, t, p, at: by_callback(h.submit_pwrite(t, p, at)),
    "await": lambda h, t, p, at: by_await(h.submit_pwrite, t, p, at),
    "many": lambda h, t, p, at: h.pwrite_many([(t, p, at)]),
    "many by future": lambda h, t, p, at: h.submit_pwrite_many([(t, p, at)]).result(),
}
READS: dict[str, Callable[[Any, FakeTensor, Path, int], Any]] = {
    "sync": lambda h, t, p, at: h.sync_pread(t, p, at),
    "read": lambda h, t, p, at: h.read(t, str(p), False, at),
    "validate": lambda h, t, p, at: h.read(t, p, True, at),
    "async": lambda h, t, p, at: (h.async_pread(t, p, at), wait_for_one(h)),
    "async validate": lambda h, t, p, at: (h.pread(t, p, True, True, at), wait_for_one(h)),
    "future": lambda h, t, p, at: h.submit_pread(t, p, at).result(),
    "callback": lambda h, t, p, at: by_callback(h.submit_pread(t, p, at)),
    "await": lambda h, t, p, at: by_await(h.submit_pread, t, p, at),
    "many": lambda h, t, p, at: h.pread_many([(t, p, at)]),
    "many by future": lambda h, t, p, at: h.submit_pread_many([(t, p, at)]).result(),
}


@pytest.mark.parametrize("way", WRITES)
@given(nbytes=SIZES, offset=st.integers(0, 9000), step=st.sampled_from([1, 1, 3]))
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
        WRITES[way](handle, tensor, path, offset)
    model.write(offset, data)
    assert contents(path) == model.content()
    assert handle.wait() == 0


@pytest.mark.parametrize("way", READS)
@given(nbytes=SIZES, offset=st.integers(0, 9000), step=st.sampled_from([1, 1, 3]))
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
        READS[way](handle, tensor, path, offset)
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


# ---- errors ----


def host_and_device(nbytes: int) -> tuple[bytearray, FakeTensor]:
    return bytearray(nbytes), empty(nbytes)


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (False, "missing"),
        (True, "no directory"),
        (False, "directory"),
        (True, "directory"),
        (False, "closed descriptor"),
        (False, "descriptor for writing"),
        (True, "descriptor for reading"),
    ],
)
def test_refused_at_the_call_as_for_host_memory(
    disk: Path, device: FakeDevice, handle: Any, write: bool, what: str
) -> None:
    file = disk / "file"
    file.write_bytes(pattern(BLOCK))
    opened: list[int] = []
    target: Path | int = disk / "missing"
    if what == "no directory":
        target = disk / "missing" / "file"
    elif what == "directory":
        target = disk
    elif what == "closed descriptor":
        target = os.open(file, os.O_RDONLY)
        os.close(target)
    elif what.startswith("descriptor"):
        flags = os.O_WRONLY if what.endswith("writing") else os.O_RDONLY
        target = os.open(file, flags)
        opened.append(target)
    found = []
    try:
        for buffer in host_and_device(100):
            submit = handle.async_pwrite if write else handle.async_pread
            with pytest.raises(aio.AioError) as raised:
                submit(buffer, target, 7)
            error = raised.value
            found.append((error.errno, error.offset, error.nbytes, error.nbytes_done))
            assert error.failures == (error,)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    assert found[1] == found[0]
    assert handle.wait() == 0
    assert contents(file) == pattern(BLOCK)


@pytest.mark.parametrize("offset", [-1, 2**63 - 99])
def test_offsets_that_cannot_be(disk: Path, device: FakeDevice, handle: Any, offset: int) -> None:
    for buffer in host_and_device(100):
        with pytest.raises(ValueError, match="file_offset"):
            handle.async_pwrite(buffer, disk / "file", offset)
    assert not (disk / "file").exists()


@pytest.mark.parametrize("beyond", [1, 2 * BLOCK, 9 * BLOCK])
def test_reading_beyond_the_end(disk: Path, device: FakeDevice, handle: Any, beyond: int) -> None:
    path, whole = disk / "file", disk / "whole"
    path.write_bytes(pattern(9 * BLOCK - beyond))
    whole.write_bytes(pattern(BLOCK))
    with pytest.raises(aio.AioError) as raised:
        handle.sync_pread(empty(9 * BLOCK), path)
    assert raised.value.errno == errno.ENODATA
    assert raised.value.filename == str(path)
    tensor = empty(BLOCK)
    assert handle.sync_pread(tensor, whole) == 1  # not what is left of the one before
    for start in (
        handle.submit_pread,
        handle.async_pread,
    ):  # refused at the call, as for host memory
        with pytest.raises(aio.AioError) as raised:
            start(empty(9 * BLOCK), path)
        assert raised.value.errno == errno.ENODATA
        assert raised.value.nbytes == 9 * BLOCK
    tensor = empty(BLOCK)  # afresh
    handle.async_pread(tensor, whole)
    assert handle.wait() == 1
    assert tensor.elements.tobytes() == pattern(BLOCK)


def test_a_failure_is_about_the_request(disk: Path, device: FakeDevice, handle: Any) -> None:
    """And not about the block that met it."""
    path = disk / "file"
    path.write_bytes(pattern(6 * BLOCK))
    with pytest.raises(aio.AioError) as raised:
        handle.sync_pread(empty(9 * BLOCK), path, 5)
    assert (raised.value.offset, raised.value.nbytes) == (5, 9 * BLOCK)


@pytest.mark.parametrize("nbytes", [128 << 10, (64 << 10) + 1])  # many blocks fail, and the last
def test_a_full_disk(tmp_path: Path, device: FakeDevice, make_handle: Any, nbytes: int) -> None:
    handle = make_handle()  # each block is one transfer, which fails in flight
    with small_tmpfs(tmp_path / "small", 64 << 10) as small:
        handle.async_pwrite(FakeTensor(pattern(nbytes)), small / "file")
        with pytest.raises(aio.AioError) as raised:
            handle.wait()
        assert raised.value.errno == errno.ENOSPC
        assert handle.wait() == 0
        os.unlink(small / "file")
        assert handle.sync_pwrite(FakeTensor(b"small"), small / "file") == 1
        assert contents(small / "file") == b"small"


@pytest.mark.parametrize("write", [False, True])
def test_a_device_that_fails(disk: Path, device: FakeDevice, handle: Any, write: bool) -> None:
    path = disk / "file"
    data = pattern(9 * BLOCK)
    path.write_bytes(data)
    tensor = FakeTensor(data)
    submit = handle.submit_pwrite if write else handle.submit_pread
    device.fail_copies = 1
    with pytest.raises(RuntimeError, match="does not copy"):
        submit(tensor, path).result()
    device.fail_copies = 1
    assert isinstance(submit(tensor, path).exception(), RuntimeError)
    assert submit(tensor, path).result() == len(data)
    assert contents(path) == data
    assert tensor.elements.tobytes() == data


@pytest.mark.parametrize("asynchronous", [False, True])
def test_validation_finds_a_difference(
    disk: Path, device: FakeDevice, handle: Any, asynchronous: bool
) -> None:
    path = disk / "file"
    device.corrupt_copies = 1  # to the host: the bytes in the file are wrong

    def write_and_wait() -> None:
        handle.pwrite(FakeTensor(pattern(1000)), path, True, asynchronous)
        handle.wait()

    with pytest.raises(aio.AioError) as raised:
        write_and_wait()
    assert raised.value.errno == errno.EIO
    assert raised.value.failures == (raised.value,)
    assert raised.value.nbytes == 1000
    assert handle.pwrite(FakeTensor(pattern(1000)), path, True, False) == 1


def test_failures_of_many_are_listed(disk: Path, device: FakeDevice, handle: Any) -> None:
    good = disk / "good"
    good.write_bytes(pattern(BLOCK))
    tensors = [empty(BLOCK), empty(BLOCK + 1), empty(BLOCK)]
    host = bytearray(BLOCK)
    with pytest.raises(aio.AioError) as raised:
        handle.pread_many(
            [
                (tensors[0], good),
                (host, good),
                (tensors[1], good),
                (tensors[2], disk / "missing"),
                (host, good, 1),
            ]
        )
    names = sorted(errno.errorcode[failure.errno or 0] for failure in raised.value.failures)
    assert names == ["ENODATA", "ENODATA", "ENOENT"]
    assert tensors[0].elements.tobytes() == bytes(host) == pattern(BLOCK)
    assert handle.wait() == 0


def test_tensors_without_memory_that_can_be_copied(disk: Path, handle: Any) -> None:
    meta = torch.empty(4, device="meta")
    unknown = FakeTensor(b"abcd", device=FakeType("unheard-of"))
    for tensor in (meta, unknown):
        for call in (
            handle.sync_pwrite,
            handle.async_pwrite,
            handle.submit_pwrite,
            lambda buffer, path: handle.pwrite_many([(buffer, path)]),
        ):
            with pytest.raises(TypeError, match="move it to the CPU"):
                call(tensor, disk / "file")
    assert not (disk / "file").exists()
    assert handle.wait() == 0


# ---- what it holds ----


def test_pageable_blocks_where_none_can_be_locked(
    disk: Path, device: FakeDevice, handle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> torch.Tensor:
        raise aio.PinError("no more")

    monkeypatch.setattr(device_transfer, "new_locked_tensor", refuse)
    data = pattern(9 * BLOCK + 5)
    assert handle.sync_pwrite(FakeTensor(data), disk / "file") == 1
    tensor = empty(len(data))
    assert handle.sync_pread(tensor, disk / "file") == 1
    assert contents(disk / "file") == tensor.elements.tobytes() == data


def test_everything_is_given_back(disk: Path, device: FakeDevice) -> None:
    data = pattern(9 * BLOCK)
    (disk / "file").write_bytes(data)

    def use() -> None:
        with aio.aio_handle() as handle:
            handle.async_pread(empty(len(data)), disk / "file")
            handle.submit_pread(empty(len(data)), disk / "file")  # nobody waits for it
            assert handle.submit_pread(empty(len(data)), disk / "file").result() == len(data)
            with pytest.raises(aio.AioError):
                handle.submit_pread(empty(len(data) + 1), disk / "file")
            device.fail_copies = 1
            with pytest.raises(RuntimeError):
                handle.sync_pwrite(FakeTensor(data), disk / "other")
            with pytest.raises(aio.AioError):
                handle.async_pread(empty(1), disk / "missing")

    use()  # whatever is made once for the process
    with counters():
        use()


def test_closing_waits(disk: Path, device: FakeDevice) -> None:
    data = pattern(9 * BLOCK)
    with aio.aio_handle() as handle:
        handle.async_pwrite(FakeTensor(data), disk / "counted")
        future = handle.submit_pwrite(FakeTensor(data), disk / "future")
    assert future.result() == len(data)
    assert contents(disk / "counted") == contents(disk / "future") == data
    with pytest.raises(RuntimeError, match="closed"):
        handle.sync_pwrite(FakeTensor(data), disk / "late")
    assert not (disk / "late").exists()
