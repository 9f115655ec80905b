"""ds_io --fio does the same work through fio in turn, and its ratio follows from both."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
from typing import Any

import pytest

from aio.measure import fio
from support.ds_io import MIB, DsIo

pytest_plugins = [
    "support.ds_io_fixture",
]

pytestmark = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that fio is started with."""
    found: list[list[str]] = []
    real = subprocess.run

    def record(line: Any, *rest: Any, **options: Any) -> Any:
        if line[0] == "fio":
            found.append(line)
        return real(line, *rest, **options)

    monkeypatch.setattr(fio.subprocess, "run", record)
    return found


@pytest.mark.parametrize("reading", [False, True])
def test_ratio_and_its_samples(ds_io: DsIo, lines: list[list[str]], reading: bool) -> None:
    flags = ["--read"] if reading else []
    run = ds_io.measure("--io_size", "64M", "--loops", 2, "--fio", *flags)
    name = "read" if reading else "write"
    assert f"--rw={name}" in lines[0]
    assert {"--direct=1", f"--size={64 * MIB}", f"--bs={MIB}", "--iodepth=32"} <= set(lines[0])
    found = run.json["fio"]
    assert [sample["nbytes"] for sample in found["loops"]] == [64 * MIB] * 2
    fios = [sample["nbytes"] / sample["seconds"] for sample in found["loops"]]
    ours = [loop["bytes"] / loop["seconds"] for loop in run.json["loops"] if loop["counted"]]
    assert found["median_gib_per_second"] == pytest.approx(statistics.median(fios) / 1024**3)
    expected = statistics.median(ours) / statistics.median(fios)
    assert found["ratio"]["of_medians"] == pytest.approx(expected)
    by_loop = statistics.median(a / b for a, b in zip(ours, fios, strict=True))
    assert found["ratio"]["median_of_rounds"] == pytest.approx(by_loop)
    assert re.search(rf"^fio {name}, .* median \S+ GB/sec$", run.out, re.MULTILINE)
    assert f"ds_io / fio = {expected:.3f} (ratio of medians)" in run.out
    assert run.metric(f"E2E {name.capitalize()} Speed") > 0  # fio's line is not taken for it


def test_as_many_jobs_as_processes(disk: Any) -> None:
    jobs = [fio.Job("read", fio.one_file(disk / name, MIB), MIB) for name in ("a", "b")]
    line = fio.command(jobs, "libaio")
    assert [word for word in line if word.startswith("--name")] == ["--name=job0", "--name=job1"]
    assert [word for word in line if word.startswith("--filename")] == [
        f"--filename={disk / name}" for name in ("a", "b")
    ]


def test_fresh_files_for_both(ds_io: DsIo, lines: list[list[str]]) -> None:
    flags = ("--different_file_each_iteration", "--fsync", "--fio")
    run = ds_io.measure("--io_size", "64M", "--loops", 1, *flags)
    assert {"--allow_file_create=1", "--fallocate=none", "--end_fsync=1"} <= set(lines[-1])
    assert run.told("file").startswith("fresh")


def test_fio_that_fails_ends_the_run(ds_io: DsIo) -> None:
    words = ds_io.refuse(1, "--io_size", "51K", "--block_size", 3264, "--fio", "--read")
    assert "fio failed" in words
