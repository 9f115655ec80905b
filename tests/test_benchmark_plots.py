"""--png draws one picture for each table, and says what is missing before anything is measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aio.measure.harness import Contestant, Sample, run_rounds
from benchmarks import plot
from benchmarks.__main__ import parse
from benchmarks.results import Result


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
