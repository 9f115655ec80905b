"""The demo of training beyond memory: the limit holds, only swapped states live under it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
HANG_S = 600
# 63 million parameters: with fewer, Python and torch would be most of the memory.
SMALL = ("--dim", "512", "--layers", "20", "--sub-group", "8", "--steps", "2", "--limit", "725")
SPANS = [
    {"kind": kind, "sub_group": number, "start": start + number, "end": start + number + 1.5}
    for number in range(3)
    for start, kind in enumerate(["read", "compute", "write"])
]


def run_demo(*arguments: object) -> subprocess.CompletedProcess[str]:
    # Threads of torch that spin for one another make it no faster beside other tests.
    root = str(EXAMPLES.parent)
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), root]))
    return subprocess.run(
        [sys.executable, EXAMPLES / "finetune_beyond_memory.py", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("memory_limit")


@pytest.mark.not_sanitized("the sanitizers need memory of their own")
def test_only_swapped_states_survive(disk: Path, tmp_path: Path) -> None:
    chart = tmp_path / "chart.png"
    done = run_demo(*SMALL, "--dir", disk, "--plot", chart)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "Not survived: in step 1 " in done.stdout
    assert "Survived with the same losses" in done.stdout
    assert done.stdout.count("   same\n") == 2
    assert list(disk.iterdir()) == []
    if importlib.util.find_spec("matplotlib") is None:
        assert "pip install 'deepnvme[plot]'" in done.stdout
    else:
        assert chart.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--dim", "33"), "multiple of 32"),
        (("--dim", "64", "--layers", "1", "--limit", "100"), "less than the states (0.9 MB)"),
        (("--dir", "/nowhere"), "'/nowhere'"),
    ],
)
def test_wrong_options_are_named(arguments: tuple[str, ...], said: str) -> None:
    done = run_demo(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


TAKES = """
import mmap, sys
taken = []
try:
    for _ in range(int(sys.argv[1])):
        taken.append(mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        taken[-1][:] = b"x" * (1 << 20)
except (OSError, MemoryError):
    sys.exit(3)
"""


@pytest.mark.not_sanitized("the sanitizers map terabytes")
@pytest.mark.parametrize("groups", [True, False])
def test_a_limit_holds(limits: ModuleType, groups: bool) -> None:
    for mebibytes, statuses in ((60, {0}), (180, {3, -9})):
        place: Any = limits.limited(128 << 20, groups)
        if groups and place.how == "RLIMIT_DATA":
            pytest.skip("no control group can be made here")
        command = [*place.command, sys.executable, "-c", TAKES, str(mebibytes)]
        assert subprocess.run(command, check=False, timeout=HANG_S).returncode in statuses
        peak = place.peak()
        place.end()
        assert (peak is not None) == groups
        assert peak is None or min(mebibytes, 100) << 20 <= peak <= 128 << 20


def test_a_group_that_counts_limits_nothing(limits: ModuleType) -> None:
    place: Any = limits.limited(None)
    command = [*place.command, sys.executable, "-c", TAKES, "60"]
    assert subprocess.run(command, check=False, timeout=HANG_S).returncode == 0
    assert place.peak() is None or place.peak() >= 60 << 20
    place.end()
    assert limits.limited(None, groups=False).command == []


def test_groups_of_version_2(limits: ModuleType, tmp_path: Path, monkeypatch: Any) -> None:
    """On plain files: the group is beside the own one, and one that cannot be made is left out."""
    own = tmp_path / "slice" / "own"
    own.mkdir(parents=True)
    monkeypatch.setattr(limits, "MOUNT", tmp_path)
    monkeypatch.setattr(
        limits, "_own_groups", lambda: [("cgroup v2", own / ".."), ("cgroup v2", own)]
    )
    place: Any = limits.limited(1 << 20)
    assert place.how == "RLIMIT_DATA"  # plain directories have no memory.peak
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["own", "slice"]
    made = Path.mkdir

    def with_files(folder: Path, *arguments: Any, **options: Any) -> None:
        made(folder, *arguments, **options)
        for name in ("memory.max", "memory.swap.max", "memory.peak", "cgroup.procs"):
            (folder / name).write_text("77")

    monkeypatch.setattr(Path, "mkdir", with_files)
    place = limits.limited(1 << 20)
    (group,) = (path for path in own.parent.iterdir() if path != own)
    assert (place.how, place.peak()) == ("cgroup v2, memory.max", 77)
    assert place.command[-1].endswith(f"/{group.name}/cgroup.procs")
    assert (group / "memory.max").read_text() == str(1 << 20)
    assert (group / "memory.swap.max").read_text() == "0"


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_chart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    chart: Any = importlib.import_module("pipeline_chart")
    path = tmp_path / f"chart{suffix}"
    chart.draw(SPANS, path, "title of it")
    content = path.read_bytes()
    if suffix == ".svg":
        assert all(word in content for word in (b"title of it", b"read", b"compute", b"write"))
    else:
        assert content.startswith(b"\x89PNG")
