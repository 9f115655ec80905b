"""ds_io --gpu: tensors of an accelerator, as they are or by a host copy made each time."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import aio
from aio.ds_io import engines
from aio.ds_io.buffers import describe
from aio.ds_io.options import Options, UsageError, parse
from aio.ds_io.worker import Worker
from aio.measure import command
from pinned_manager import new_locked_tensor, pinned_stats

MIB = 1 << 20


def on_device(disk: Path, *flags: str, bounce: bool) -> Options:
    """As with --gpu, where torch's only device is the CPU: its tensors are not page-locked."""
    given = parse(["--folder", str(disk), "--io_size", "1M", "--validate", *flags])
    return dataclasses.replace(given, gpu=True, slow_bounce_buffer=bounce)


@pytest.mark.parametrize("engine", ["aio_handle", "torch_io"])
@pytest.mark.parametrize("reading", [False, True])
@pytest.mark.parametrize("bounce", [False, True])
def test_bytes_of_a_device_tensor(disk: Path, engine: str, reading: bool, bounce: bool) -> None:
    flags = ["--engine", engine, *(["--read"] if reading else [])]
    with ExitStack() as stack:
        worker = Worker(on_device(disk, *flags, bounce=bounce), 0, disk, stack)
        part = worker.loop(0)
        assert part.nbytes == worker.loop(1).nbytes == MIB
        assert part.memory.startswith("not page-locked")
    assert pinned_stats()["in_use"] == 0


def test_where_a_tensor_lies_in_words() -> None:
    words = describe(torch.empty(1, device="meta"))
    assert words == "on meta, through page-locked blocks"
    assert describe(new_locked_tensor(1, torch.uint8)) == "page-locked"
    assert describe(torch.empty(1)).startswith("not page-locked")


def test_the_bounce_buffer_is_locked_anew_in_every_loop(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = []
    real = engines.host_buffer

    def look(nbytes: int, by_accelerator: bool) -> object:
        cached.append(pinned_stats()["cached"])
        return real(nbytes, by_accelerator)

    monkeypatch.setattr(engines, "host_buffer", look)
    with ExitStack() as stack:
        worker = Worker(on_device(disk, bounce=True), 0, disk, stack)
        for loop in range(3):
            # Dropped, not freed: the pool keeps it locked, where the loop would find it.
            new_locked_tensor(MIB, torch.uint8)
            assert pinned_stats()["cached"] >= MIB
            worker.loop(loop)
    assert cached == [0, 0, 0]


def test_the_device_of_each_process(monkeypatch: pytest.MonkeyPatch, disk: Path) -> None:
    monkeypatch.setattr(command, "get_accelerator", lambda: SimpleNamespace(name="cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    given = ["--folder", str(disk), "--io_size", "1M", "--gpu", "--multi_process"]
    assert parse([*given, "2"]).devices == (0, 1)
    with pytest.raises(UsageError, match="no cuda device 2; there are 2, from 0"):
        parse([*given, "3"])
    pair = ["--folder_to_device_mapping", f"{disk}:1", "--io_size", "1M", "--gpu"]
    assert parse(pair).devices == (1,)


def test_a_handle_takes_the_tensor_as_it_is(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --slow_bounce_buffer no copy of the whole tensor is made in host memory."""
    moved = []
    real = aio.aio_handle.async_pwrite

    def record(handle: aio.aio_handle, tensor: torch.Tensor, path: str, offset: int = 0) -> int:
        moved.append(tensor)
        return real(handle, tensor, path, offset)

    monkeypatch.setattr(aio.aio_handle, "async_pwrite", record)
    with ExitStack() as stack:
        worker = Worker(on_device(disk, bounce=False), 0, disk, stack)
        worker.loop(0)
        assert moved[0] is worker._engine._tensor
