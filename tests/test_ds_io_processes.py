"""ds_io's processes run every loop together; one that fails or dies ends all, and none is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from aio.ds_io import worker
from aio.ds_io.options import Options, parse
from aio.ds_io.worker import ManyProcesses, Worker, open_team
from aio.measure.harness import BenchError
from support import ds_io_children
from support.counters import counters
from support.ds_io import MIB, DsIo
from support.mounts import small_tmpfs

pytest_plugins = ["support.ds_io_fixture"]


def options(disk: Path, *flags: str) -> Options:
    return parse(["--folder", str(disk), "--io_size", "1M", "--multi_process", "2", *flags])


@contextmanager
def team(disk: Path, *flags: str) -> Iterator[ManyProcesses]:
    folders = [disk / "0", disk / "1"]
    for folder in folders:
        folder.mkdir()
    made = open_team(options(disk, *flags), folders)
    assert isinstance(made, ManyProcesses)
    try:
        yield made
    finally:
        made.close()
        assert multiprocessing.active_children() == []


def test_every_process_waits_for_the_others(disk: Path) -> None:
    """None starts before all are ready, by a clock that all of them read."""
    ready: list[str] = []

    def meet() -> None:
        assert (disk / "_aio_write_1048576.pt.0_0").exists() == bool(ready)
        ready.append("here")

    with ExitStack() as stack:
        worker = Worker(options(disk), 0, disk, stack, meet)
        worker.loop(0)
        worker.loop(1)
    assert ready == ["here"] * 2


def test_a_process_that_dies_ends_the_run(disk: Path) -> None:
    with team(disk) as both:
        first = both.loop(0)
        assert [part.nbytes for part in first] == [MIB] * 2
        os.kill(both._processes[1].pid or 0, signal.SIGKILL)
        for number in (1, 2):  # in its loop, and dead before it is told of one
            with pytest.raises(BenchError, match=r"process 1 ended .* \(killed by SIGKILL\)"):
                both.loop(number)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_process_that_cannot_begin_ends_those_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    monkeypatch.setattr(worker, "_child", ds_io_children.fails_at)
    multiprocessing.get_context("spawn").Barrier(2)  # what the first one makes, this process keeps
    given: Any = failing
    with counters():
        with pytest.raises(BenchError, match=rf"process {failing}: .*{failing}: No such file"):
            open_team(given, [tmp_path / "0", tmp_path / "1"])
        assert multiprocessing.active_children() == []


def test_a_process_that_fails_ends_those_at_the_barrier(disk: Path) -> None:
    """The other one is past its preparation, and waits for one that never comes."""
    with team(disk, "--read") as both:
        both.loop(0)
        for path in (disk / "1").iterdir():
            path.unlink()
        with pytest.raises(BenchError, match=r"process 1: .*No such file"):
            both.loop(1)


@pytest.mark.not_sanitized("the same in one process is tested there")
def test_one_full_drive_fails_the_command(tmp_path: Path, disk: Path, ds_io: DsIo) -> None:
    with small_tmpfs(tmp_path / "drive", 64 * MIB) as drive:
        pairs = ("--folder_to_device_mapping", f"{disk}:0", f"{drive}:1")
        words = ds_io.refuse(1, "--io_size", "100M", *pairs, where=False)
        assert f"{drive}: 64 MiB free" in words
        assert list(drive.iterdir()) == []
