"""ds_io says whether the page cache served, and whether files were new (H-01, H-02)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from aio.ds_io.engines import Engine
from aio.measure.files import resident_share
from support.ds_io import MIB, DsIo
from support.files import cached_pages, drop_cache
from support.mounts import ramfs

pytest_plugins = ["support.ds_io_fixture"]


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pages that the cache has of the file when the clock starts; it was full before each loop."""
    found: list[float] = []
    prepare, cached = Engine.prepare, Engine.cached

    def warm(this: Engine, loop: int) -> str:
        if this.path(loop).exists():
            this.path(loop).read_bytes()
        return prepare(this, loop)

    def look(this: Engine, loop: int) -> float | None:
        pages, total = cached_pages(this.path(loop))
        found.append(pages / total)
        return cached(this, loop)

    monkeypatch.setattr(Engine, "prepare", warm)
    monkeypatch.setattr(Engine, "cached", look)
    return found


@pytest.mark.parametrize("engine", ["aio_handle", "torch_io"])
def test_nothing_of_the_file_is_cached_when_it_is_read(
    ds_io: DsIo, warmed: list[float], engine: str
) -> None:
    run = ds_io.measure("--io_size", "4M", "--read", "--engine", engine)
    assert warmed == [0.0] * 4
    assert run.told("page cache").startswith("0.0%")
    assert run.json["results"]["cached"] == 0.0


def test_what_is_cached_after_all_is_said(ds_io: DsIo, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = Engine.cached

    def warm(this: Engine, loop: int) -> float | None:
        this.path(loop).read_bytes()
        return cached(this, loop)

    monkeypatch.setattr(Engine, "cached", warm)
    run = ds_io.measure("--io_size", "1M", "--read")
    assert run.told("page cache").startswith("100.0%")


def test_share_in_the_page_cache(disk: Path) -> None:
    path = disk / "file"
    path.write_bytes(bytes(8 * MIB))
    assert resident_share(path) == 1.0
    drop_cache(path)
    assert resident_share(path) == 0.0
    with path.open("rb", buffering=0) as file:
        # Without reading ahead, which would go on in the background.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(MIB)
    assert resident_share(path) == 1 / 8
    path.write_bytes(b"")
    assert resident_share(path) == 0.0


def test_direct_is_told_from_the_page_cache(ds_io: DsIo) -> None:
    direct = ds_io.measure("--io_size", "1M", "--read")
    if "page cache" in direct.told("path"):
        pytest.skip("the drive's file system refuses O_DIRECT")
    assert direct.told("path").startswith("direct")
    by_path = direct.json["results"]["bytes_by_path"]
    assert by_path["direct"] + by_path["fixed"] == 3 * MIB
    cached = ds_io.measure("--io_size", "1M", "--read", "--engine", "torch_io")
    assert cached.told("path") == "page cache"


def test_a_file_system_without_direct_io_is_named_page_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ramfs(tmp_path / "drive") as drive:
        (drive / "probe").unlink()
        ds_io = DsIo(drive, tmp_path / "result.json", capsys)
        run = ds_io.measure("--io_size", "1M")
        assert run.told("path") == "page cache (ramfs: memory, no drive)"
        assert "ends with fsync" in run.told("durability")


@pytest.mark.parametrize(
    ("flags", "states"),
    [
        ((), ["fresh", "overwrite", "overwrite", "overwrite"]),
        (("--different_file_each_iteration",), ["fresh"] * 4),
        (("--engine", "torch_io"), ["fresh"] * 4),
        (("--read",), ["existing"] * 4),
    ],
)
def test_fresh_files_are_told_from_overwritten_ones(
    ds_io: DsIo, flags: tuple[str, ...], states: list[str]
) -> None:
    run = ds_io.measure("--io_size", "1M", *flags)
    assert [loop["processes"][0]["file"] for loop in run.json["loops"]] == states
    assert run.told("file").startswith(states[-1])


def test_both_kinds_in_one_number_are_said(ds_io: DsIo) -> None:
    run = ds_io.measure("--io_size", "1M", "--warmup_loops", 0)
    assert run.told("file") == "fresh in the first loop, overwrite in the others"


def test_files_lie_where_the_user_said(ds_io: DsIo, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []
    real = tempfile.mkdtemp

    def record(*, prefix: str, dir: Path) -> str:
        folders.append(dir)
        return real(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkdtemp", record)
    ds_io.measure("--io_size", "1M")
    assert folders == [ds_io.folder]
