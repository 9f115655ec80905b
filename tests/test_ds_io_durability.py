"""Writes of ds_io end past the page cache; where they went through it, by fsync, timed (H-04)."""

from __future__ import annotations

from typing import Any

import pytest

import aio
from aio.ds_io import torch_engine
from aio.ds_io.engines import HandleEngine
from support.ds_io import DsIo

pytest_plugins = ["support.ds_io_fixture"]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are fsync'ed between the start and the end of a transfer."""
    found: list[str] = []
    inside = [False]

    def timed(kind: Any) -> None:
        transfer = kind.transfer

        def run(this: Any, loop: int) -> None:
            inside[0] = True
            transfer(this, loop)
            inside[0] = False

        monkeypatch.setattr(kind, "transfer", run)

    def recorded(owner: Any, name: str, place: int) -> None:
        real = getattr(owner, name)

        def run(*arguments: Any) -> None:
            if inside[0]:
                found.append(str(arguments[place]))
            real(*arguments)

        monkeypatch.setattr(owner, name, run)

    timed(torch_engine.TorchEngine)
    timed(HandleEngine)
    recorded(aio.aio_handle, "fsync", 1)
    recorded(torch_engine, "sync_file", 0)
    return found


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        (("--engine", "aio_handle"), 0),
        (("--engine", "aio_handle", "--fsync"), 4),
        (("--engine", "aio_basic", "--fsync"), 4),
        (("--engine", "torch_io"), 4),
        (("--engine", "torch_io", "--fsync"), 4),
        (("--engine", "torch_io", "--read"), 0),
        (("--engine", "aio_handle", "--read", "--fsync"), 0),
    ],
)
def test_fsync_is_inside_the_time(
    ds_io: DsIo, synced: list[str], flags: tuple[str, ...], count: int
) -> None:
    run = ds_io.measure("--io_size", "1M", *flags)
    if flags == ("--engine", "aio_handle") and "page cache" in run.told("path"):
        pytest.skip("the drive's file system refuses O_DIRECT")
    assert len(synced) == count
    if "--read" not in flags:
        said = run.told("durability")
        assert ("ends with fsync, inside the time" in said) == (count > 0)
        assert ("no fsync" in said) == (count == 0)


@pytest.mark.parametrize("engine", ["aio_handle", "torch_fastio"])
def test_a_tail_through_the_page_cache_is_on_the_drive_too(
    ds_io: DsIo, synced: list[str], engine: str
) -> None:
    run = ds_io.measure("--io_size", (1 << 20) + 17, "--engine", engine)
    assert len(synced) == 4
    assert "some bytes went through the page cache" in run.told("durability")


@pytest.mark.parametrize(("flags", "count"), [((), 0), (("--fsync",), 4)])
def test_a_serialized_tensor_that_all_went_past_it(
    ds_io: DsIo,
    synced: list[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    count: int,
) -> None:
    """As where torch.save's own bytes fill the last sector."""
    monkeypatch.setattr(
        torch_engine.TorchEngine, "_save", lambda this, file: file.write(bytes(1 << 20))
    )
    run = ds_io.measure("--io_size", "1M", "--engine", "torch_fastio", *flags)
    if "page cache" in run.told("path"):
        pytest.skip("the drive's file system refuses O_DIRECT")
    assert len(synced) == count
