"""What the tuner measures is the drive: caches dropped, blocks allocated, bytes counted as they
complete, and nothing left behind (H-01, H-02, H-03).
"""

from __future__ import annotations

import copy
import errno
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import aio
from aio.drives import mount_of
from aio.measure import fio, room
from aio.measure.harness import BenchError
from aio.options import HandleOptions
from aio.tune import workload
from aio.tune.against_fio import compare
from aio.tune.session import Deadline
from aio.tune.workload import DIRECTIONS, PERCENTILES, check_room, prepared
from pinned_manager import PinError, pinned_memory_stats
from support.fake_device import FakeDevice, FakeTensor
from support.files import cached_pages, contents
from support.mounts import small_tmpfs
from support.tuning import Clock

pytest_plugins = ["support.device_fixtures"]

MIB = 1 << 20
OPTIONS = HandleOptions(65536, 8, intra_op_parallelism=2, backend="posix")


def one_file(directory: Path, nbytes: int = 2 * MIB, loops: int = 1) -> Any:
    return prepared([str(directory)], nbytes, None, loops, 60.0)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("loops", [1, 3])
def test_a_run_moves_every_byte(directory: Path, direction: str, loops: int) -> None:
    with one_file(directory, 2 * MIB + 4096, loops) as work:
        sample = work.run(direction, OPTIONS)
        assert sample.nbytes == work.moved == loops * (2 * MIB + 4096)
        assert sample.operations == loops
        assert sample.seconds > 0
        assert set(sample.latency) == set(PERCENTILES)
        assert 0 < sample.latency["p50"] <= sample.latency["max"]


def test_buffers_and_files_are_really_read_and_written(directory: Path) -> None:
    with one_file(directory) as work:
        path = Path(work.paths()[0])
        random_data = contents(path)
        assert len(random_data) == 2 * MIB
        work.run("read", OPTIONS)
        assert bytes(work._buffers[0].numpy()) == random_data
        work._buffers[0].fill_(7)
        work.run("write", OPTIONS)
        assert contents(path) == b"\7" * 2 * MIB


def test_several_directories_are_used_at_once(disk: Path, tmpfs: Path) -> None:
    with prepared([str(disk), str(tmpfs)], MIB, None, 1, 60.0) as work:
        sample = work.run("write", OPTIONS)
        assert (sample.nbytes, sample.operations) == (2 * MIB, 2)
        for path, buffer in zip(work.paths(), work._buffers, strict=True):
            assert contents(Path(path)) == bytes(buffer.numpy())
        assert "O_DIRECT" in work.describe() or "page cache" in work.describe()
        assert "in memory (tmpfs)" in work.describe()


class Sliceable(FakeTensor):
    """Device memory of which a part can be moved."""

    def __getitem__(self, part: slice) -> Sliceable:
        view = copy.copy(self)
        view.memory = view.elements = self.elements[part]
        return view


def test_memory_of_a_device(directory: Path, device: FakeDevice) -> None:
    with one_file(directory, MIB) as work:
        path = Path(work.paths()[0])
        target = Sliceable(bytes(MIB))
        work._buffers = [target]
        assert work.run("read", OPTIONS).nbytes == MIB
        assert target.memory.tobytes() == contents(path)
        work._buffers = [Sliceable(b"\7" * MIB)]
        assert work.run("write", OPTIONS).nbytes == MIB
        assert contents(path) == b"\7" * MIB


def test_memory_that_torch_makes_on_a_device(directory: Path) -> None:
    devices = (torch.device("cpu"),)  # any that torch has: each directory's buffer is made there
    with prepared([str(directory)], MIB, devices, 1, 60.0) as work:
        assert "memory of cpu" in work.describe()
        assert work.run("read", OPTIONS).nbytes == MIB
        assert work._buffers[0].numpy().tobytes() == contents(Path(work.paths()[0]))


def test_files_become_as_large_as_there_is_time_to_write(
    tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(workload, "prepare_file", lambda path, nbytes: sizes.append(nbytes))
    with (tmpfs / "file").open("wb") as file:
        assert workload._prepare([file], 40 * MIB, 1e9) == 40 * MIB
        assert workload._prepare([file], 40 * MIB, 0.0) == 32 * MIB
    assert sizes == [32 * MIB, 40 * MIB, 32 * MIB]


def test_no_time_for_fio(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fio, "version", lambda: "fio-3")
    monkeypatch.setattr(fio, "Runner", lambda jobs, engine: SimpleNamespace(warm_up=lambda: None))
    findings: Any = SimpleNamespace(
        best={"read": OPTIONS}, bytes_per_second=lambda direction, options: 1e9
    )
    clock = Clock()
    deadline = Deadline(1.0, clock)
    clock.now = 2.0
    with one_file(directory) as work:
        assert compare(work, findings, deadline) == (
            {},
            "there was no time left for fio: see --time",
        )


def test_smaller_runs(directory: Path) -> None:
    with one_file(directory) as work:
        work.resize(MIB)
        assert work.run("read", OPTIONS).nbytes == work.moved == MIB


class Watched(aio.aio_handle):
    """A handle that says what was in the page cache when the timed part began."""

    cached: list[int]
    flushed: list[int]

    def pread_many(self, items: Any) -> int:
        Watched.cached = [cached_pages(Path(f"/proc/self/fd/{file}"))[0] for _, file in items]
        return super().pread_many(items)

    def fsync(self, filename: Any) -> None:
        Watched.flushed.append(filename)
        super().fsync(filename)


def test_a_read_finds_nothing_in_the_page_cache(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "aio_handle", Watched)
    with one_file(disk) as work:
        path = Path(work.paths()[0])
        contents(path)
        assert cached_pages(path)[0] > 0
        sample = work.run("read", OPTIONS)
        assert Watched.cached == [0]
        if work.modes == ["past the page cache (O_DIRECT)"]:
            assert sample.mode == "direct"


def test_a_write_through_the_page_cache_ends_on_the_drive(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "aio_handle", Watched)
    monkeypatch.setattr(Watched, "flushed", [], raising=False)
    with one_file(disk) as work:
        work.modes = ["page cache"]  # as on a file system without O_DIRECT
        work.run("write", OPTIONS)
        assert Watched.flushed == [work._files[0].fileno()]
        assert "page cache, with fsync after writing" in work.describe()


def test_writes_overwrite_allocated_blocks(disk: Path) -> None:
    with one_file(disk) as work:
        before = os.fstat(work._files[0].fileno())
        assert before.st_blocks * 512 >= 2 * MIB
        work.run("write", OPTIONS)
        after = os.fstat(work._files[0].fileno())
        assert (after.st_blocks, after.st_size) == (before.st_blocks, before.st_size)
        assert "writes overwrite allocated blocks" in work.describe()


def test_a_failure_is_no_throughput(directory: Path) -> None:
    with one_file(directory) as work:
        os.truncate(work.paths()[0], MIB)
        with pytest.raises(aio.AioError) as caught:
            work.run("read", OPTIONS)
        assert caught.value.errno == errno.ENODATA


class Forgetful(aio.aio_handle):
    """Reports success for the second half of each request, which it does not move."""

    def pread_many(self, items: Any) -> int:
        return super().pread_many([(buffer[: len(buffer) // 2], file) for buffer, file in items])


def test_bytes_that_did_not_move_are_not_counted(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "aio_handle", Forgetful)
    with one_file(directory) as work, pytest.raises(BenchError, match="1048576 bytes of 2097152"):
        work.run("read", OPTIONS)


def test_nothing_is_left(directory: Path) -> None:
    pinned, descriptors = pinned_memory_stats()["live"], len(os.listdir("/proc/self/fd"))
    with one_file(directory) as work:
        work.run("write", OPTIONS)
        assert os.listdir(directory) == [], "the file has a name, which a killed program leaves"
    assert os.listdir(directory) == []
    assert pinned_memory_stats()["live"] == pinned
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_ordinary_memory_where_no_more_can_be_locked(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoMemory(workload.pin_handle):
        def new_cpu_locked_tensor(self, *args: Any, **options: Any) -> Any:
            raise PinError("the limit is 64 KiB")

    monkeypatch.setattr(workload, "pin_handle", NoMemory)
    with one_file(directory) as work:
        assert work.run("read", OPTIONS).nbytes == 2 * MIB
        assert "ordinary memory (the limit is 64 KiB)" in work.describe()


def test_room_is_checked_first(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "small", 64 * MIB) as small:
        one, two = str(small), str(small / "two")
        os.mkdir(two)
        check_room([one], 20 * MIB)
        with pytest.raises(BenchError, match=r"64 MiB free, but 96 MiB needed.*--io_size"):
            check_room([one], 64 * MIB)
        with pytest.raises(BenchError, match=r"two: 64 MiB free, but 72 MiB needed"):
            check_room([one, two], 20 * MIB)


def test_memory_is_checked_first(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in memory takes as much again."""
    monkeypatch.setattr(room, "available_memory", lambda: 3 * MIB)
    check_room([str(directory)], MIB)
    with pytest.raises(BenchError, match=r"MiB of memory needed, 3 MiB available.*--io_size"):
        check_room([str(directory)] * 2, 2 * MIB)
    in_memory = "tmpfs" in str(mount_of(directory))
    with pytest.raises(BenchError) if in_memory else nullcontext():
        check_room([str(directory)], 2 * MIB)
    assert os.listdir(directory) == []
