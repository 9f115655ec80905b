"""Device tensors that cannot be moved: the same errors as for host memory, each told once."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import _deepnvme
import aio
from support.buffers import pattern
from support.fake_device import BLOCK, FakeDevice, FakeTensor, FakeType, empty
from support.files import contents
from support.mounts import small_tmpfs

pytest_plugins = ["support.device_fixtures"]


@pytest.fixture
def handle(make_handle: Any) -> Any:
    return make_handle(block_size=4096)


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


def test_names_that_are_not_text(tmp_path: Path) -> None:
    """The file by which device tensors move has the name that an error shows, whatever it is."""
    handle = _deepnvme.io.Handle(4096, 4, False, False, 1, "posix")
    name = os.fsencode(tmp_path) + b"/\xff\xc3"
    file = handle.open(name, 0, 1, True)
    assert file.path() == os.fsdecode(name)
    handle.close()
