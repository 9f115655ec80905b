"""ds_io counts bytes that completed; what is short, lost or without room ends it (H-03)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import aio
from aio.ds_io.engines import HandleEngine
from aio.ds_io.torch_engine import TorchEngine
from support.ds_io import MIB, DsIo
from support.files import fill_up
from support.mounts import ext4_image, small_tmpfs

pytest_plugins = ["support.ds_io_fixture"]


def test_bytes_are_those_that_the_handle_counted(
    ds_io: DsIo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that says done, and has moved less, is believed in nothing."""
    real = aio.aio_handle.async_pwrite

    def lazy(handle: Any, tensor: Any, path: str) -> int:
        return real(handle, tensor[: len(tensor) - 4096], path)

    monkeypatch.setattr(aio.aio_handle, "async_pwrite", lazy)
    words = ds_io.refuse(1, "--io_size", "1M")
    assert f"{MIB - 4096} of {MIB} bytes completed" in words


def test_a_request_that_nobody_started_is_missed(
    ds_io: DsIo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio.aio_handle, "async_pread", lambda *_: 0)
    assert "0 operations completed of 1" in ds_io.refuse(1, "--io_size", "1M", "--read")


@pytest.mark.parametrize("engine", ["torch_io", "torch_fastio"])
def test_a_file_too_small_for_the_tensor(
    ds_io: DsIo, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    real = TorchEngine.transfer

    def cut(this: TorchEngine, loop: int) -> None:
        real(this, loop)
        with this.path(loop).open("r+b") as file:
            file.truncate(MIB - 1)

    monkeypatch.setattr(TorchEngine, "transfer", cut)
    assert f"{MIB - 1} " in ds_io.refuse(1, "--io_size", "1M", "--engine", engine)


@pytest.mark.parametrize("engine", ["aio_handle", "aio_basic", "torch_io", "torch_fastio"])
@pytest.mark.parametrize("made", [small_tmpfs, ext4_image])
def test_a_drive_that_fills_up_meanwhile(
    made: Callable[..., Any],
    engine: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The room that is there at the start is gone before the first byte is written."""
    with made(tmp_path / "drive", 24 * MIB) as drive:
        for path in drive.iterdir():
            if path.is_dir():
                path.rmdir()  # lost+found
        fill_up(drive / "rest")
        monkeypatch.setattr(
            shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40, total=1 << 40)
        )
        ds_io = DsIo(drive, tmp_path / "result.json", capsys)
        run = ds_io("--io_size", "8M", "--engine", engine, "--fast_io_size", "1M")
        assert run.status == 1
        assert run.out == ""
        assert len(run.err.splitlines()) == 1
        assert [path.name for path in drive.iterdir()] == ["rest"]


def test_too_little_room_is_found_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_tmpfs(tmp_path / "drive", 40 * MIB) as drive:
        ds_io = DsIo(drive, tmp_path / "result.json", capsys)
        words = ds_io.refuse(1, "--io_size", "3M", "--different_file_each_iteration")
        assert "40 MiB free, but 44 MiB needed" in words
        ds_io.measure("--io_size", "3M")


def test_a_failure_in_a_counted_loop_takes_the_others_with_it(
    ds_io: DsIo, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = HandleEngine.transfer

    def fail(this: HandleEngine, loop: int) -> None:
        if loop == 3:
            raise OSError(5, "Input/output error", "there")
        real(this, loop)

    monkeypatch.setattr(HandleEngine, "transfer", fail)
    assert "Input/output error: 'there'" in ds_io.refuse(1, "--io_size", "1M")
