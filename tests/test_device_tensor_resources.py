"""What device tensors hold of host memory, threads and descriptors is given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import aio
import aio.device_transfer as device_transfer
from support.buffers import pattern
from support.counters import counters
from support.fake_device import BLOCK, FakeDevice, FakeTensor, empty
from support.files import contents

pytest_plugins = ["support.device_fixtures"]


@pytest.fixture
def handle(make_handle: Any) -> Any:
    return make_handle(block_size=4096)


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
