"""Pictures have the figures that were measured, and what is missing is said before measuring."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from aio.measure import fio
from aio.measure.harness import Contestant, Sample, run_rounds
from benchmarks import block_sizes, curves, plot, report
from benchmarks.__main__ import parse
from benchmarks.curves import Point
from benchmarks.results import Result
from support.benchmarks import context


def test_without_matplotlib(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="2"):
        parse(["--dir", str(tmp_path), "--png", str(tmp_path / "png")])
    assert "pip install matplotlib, or leave out --png" in capsys.readouterr().err
    assert parse(["--dir", str(tmp_path)]).png is None


def test_one_picture_for_each_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    result = Result("peers", "Peers")
    names = ("aio", "$other_")  # nothing is taken for mathematics
    contestants = [Contestant(n, lambda: Sample(0.5, 10**9, 0.1, 1, "direct")) for n in names]
    series = run_rounds(contestants, 3)
    for work in ("read 1024 MiB, buffer", "write 1024 MiB, buffer"):
        result.add(work, "existing file", series, series["aio"])
    drawn = plot.draw(result, tmp_path / "new", "vda ext4")
    assert [path.name for path in drawn] == [
        "peers-read-1024-mib-buffer.png", "peers-write-1024-mib-buffer.png",
    ]  # fmt: skip
    for path in drawn:
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_nothing_to_draw(tmp_path: Path) -> None:
    assert plot.draw(Result("pinning", "", error="broken"), tmp_path, "") == []


def row(contestant: str, median: float, block_size: int = 4096, depth: int = 1) -> dict[str, Any]:
    settings = {"direction": "read", "block_size": block_size, "queue_depth": depth}
    rates = {"median": median, "min": median / 2, "max": median * 2}
    return {"contestant": contestant, "settings": settings, "gb_per_second": rates}


def test_lines_have_the_best_fio_of_each_point() -> None:
    rows = [
        row("aio pinned", 5, 8192), row("fio libaio", 3, 8192), row("fio io_uring", 4, 8192),
        row("aio pinned", 1, 4096), row("fio libaio", 2, 4096), row("fio io_uring", 1, 4096),
        row("aio pinned", 7, depth=32),
    ]  # fmt: skip
    assert curves.lines_of(rows) == {
        ("read", "aio", 1): [Point(4096, 1, 0.5, 2), Point(8192, 5, 2.5, 10)],
        ("read", "best fio", 1): [Point(4096, 2, 1, 4), Point(8192, 4, 2, 8)],
        ("read", "aio", 32): [Point(4096, 7, 3.5, 14)],
    }


def test_block_sizes_are_measured_and_drawn(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    if fio.version() is None:
        pytest.skip("fio is not installed")
    monkeypatch.setattr(block_sizes, "BLOCK_SIZES", (65536,))
    result = report.as_json(block_sizes.run(context(disk)))
    lines = curves.lines_of(result["rows"])
    assert set(lines) == {
        (direction, who, depth)
        for direction in ("read", "write")
        for who in ("aio", "best fio")
        for depth in (1, 32)
    }
    assert {point.block_size for line in lines.values() for point in line} == {65536}

    machine = {"cpu": "a processor", "cores": 2, "kernel": "6.0", "fio": "fio-3"}
    directory = {"file_system": "ext4", "device": "vda", "benchmarks": [result]}
    source, picture = disk / "found.json", disk / "drawn.svg"
    report.write_json(source, machine, [directory])
    assert curves.main([str(source), str(picture)]) == 0
    drawn = picture.read_text()
    for text in ("64 KiB", "aio, depth 32", "best fio, depth 1", "a processor", "ext4 on vda"):
        assert text in drawn
    assert curves.main([str(source), str(picture)]) == 0
    assert picture.read_text() == drawn  # so that a picture changes only with its figures


def test_no_curves_without_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    source = tmp_path / "found.json"
    source.write_text(json.dumps({"machine": {}, "directories": []}))
    assert curves.main([str(source), str(tmp_path / "drawn.svg")]) == 1
    assert "--only block_sizes" in capsys.readouterr().err
