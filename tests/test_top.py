"""deepnvme top: what a process does, told by itself; nothing is there unless it was asked for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aio
from aio import endpoints, stats_server, top
from aio.__main__ import main
from support.child import HANG_S, TESTS
from support.counters import until

pytest_plugins = ["support.top_fixture"]

PARENT = """
import json, os, sys, aio, torch
folder, action = sys.argv[1:]
tensor = torch.ones(300_001, dtype=torch.uint8)
kept = aio.aio_handle(block_size=65536, intra_op_parallelism=2)
with aio.aio_handle() as closed:
    closed.sync_pwrite(tensor[:1000], f"{folder}/b")
    mine = closed.stats()["devices"]
del closed
kept.async_pwrite(tensor, f"{folder}/a", 1)
kept.wait()
kept.sync_pread(tensor[:77], f"{folder}/a")
locked = kept.new_cpu_locked_tensor(100_000, tensor)
if action == "serve":
    paths = {str(aio.serve_stats()) for _ in range(2)}
    assert len(paths) == 1
if action == "fork":
    pid = os.fork()
    if pid == 0:
        # The parent's is closed, so that this process does not keep it alive.
        assert aio.serve_stats().stem == str(os.getpid())
        sys.stdin.readline()
        os._exit(0)
    print(json.dumps([kept.stats(), mine, pid]), flush=True)
else:
    print(json.dumps([kept.stats(), mine, 0]), flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def process(folder: Path, action: str = "", asked: str = "") -> Iterator[tuple[Any, list[Any]]]:
    """A process that has moved bytes and waits, and what it says of them itself."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "DEEPNVME_TOP": asked}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder), action],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        try:
            yield child, json.loads(child.stdout.readline())
        finally:
            with contextlib.suppress(BrokenPipeError):
                child.communicate("\n", timeout=HANG_S)


def run_top(capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, Any]:
    usual: dict[str, Any] = {"pid": None, "once": True, "as_json": True, "interval": 0.01}
    status = top.print_top(**{**usual, **options})
    out = capsys.readouterr().out
    return status, json.loads(out)["processes"] if out else None


def test_what_top_says_is_what_the_process_says(
    place: Path,
    disk: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with process(disk, asked="1") as (child, (stats, of_closed, _)):
        found = os.stat(place)
        assert stat.S_IMODE(found.st_mode) == 0o700
        (path,) = place.iterdir()
        assert path.name == f"{child.pid}.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        status, (report,) = run_top(capsys, pid=child.pid)
        assert status == 0
        assert report["pid"] == child.pid
        (handle,) = report["handles"]
        assert handle["stats"] == stats
        assert (handle["block_size"], handle["intra_op_parallelism"]) == (65536, 2)
        assert handle["rate"] == {"read": 0, "write": 0}  # nothing moves now
        assert report["pinned"]["in_use"] == 102_400
        assert report["page_locked"] >= 102_400
        number = os.stat(disk).st_dev
        name = f"{os.major(number)}:{os.minor(number)}"
        assert stats["devices"] == {name: {"read": 77, "write": 300_001}}
        assert of_closed == {name: {"read": 0, "write": 1000}}
        (moved,) = report["devices"].values()
        assert (moved["read"], moved["write"]) == (77, 301_001)  # since the process has started
        assert moved["name"] == top.device_name(name)
        status, _ = run_top(capsys, pid=os.getpid())
        assert status == 1
        capsys.readouterr()
        monkeypatch.setenv("COLUMNS", "200")
        assert main(["top", "--once", "--interval", "0.01"]) == 0
        table = capsys.readouterr().out
        assert f"process {child.pid}" in table
        assert "100 KiB" in table
    assert child.returncode == 0  # its thread did not keep it alive
    assert list(place.iterdir()) == []


def test_nothing_unless_asked_for(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with aio.aio_handle() as handle:
        handle.sync_pwrite(b"1", tmp_path / "file")
        assert not place.exists()
        assert "aio-stats" not in {thread.name for thread in threading.enumerate()}
        opened = [Path("/proc/self/fd", one) for one in set(os.listdir("/proc/self/fd")) - before]
        names = [os.readlink(one) for one in opened if one.exists()]
        assert not any(name.startswith("socket:") for name in names)
    assert run_top(capsys) == (1, None)
    assert top.print_top(5, True, True, 0.01) == 1
    assert "DEEPNVME_TOP=1" in capsys.readouterr().err


def test_a_killed_process_is_forgotten(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its socket is removed; that of a living one stays, and so does what is no socket."""
    with process(tmp_path, "serve") as (child, _):
        server, living = endpoints.listen()
        dead = place / f"{child.pid}.sock"
        assert endpoints.living_endpoints() == {child.pid: dead, os.getpid(): living}
        child.kill()
        child.wait()
    with server:
        assert dead.exists()
        (place / "notes.sock").write_text("kept")
        assert endpoints.living_endpoints() == {os.getpid(): living}
        assert {path.name for path in place.iterdir()} == {living.name, "notes.sock"}
    assert run_top(capsys) == (1, None)
    assert not living.exists()


def test_fork(place: Path, tmp_path: Path) -> None:
    """The child has its own, and does not answer for a parent that is dead."""
    with process(tmp_path, "fork", asked="1") as (parent, (_, _, pid)):
        until(lambda: set(endpoints.living_endpoints()) == {parent.pid, pid}, "both answer")
        answers = {number: endpoints.ask(path) for number, path in _paths(place)}
        assert {number: answer["pid"] for number, answer in answers.items()} == {
            parent.pid: parent.pid,
            pid: pid,
        }
        (moved,) = answers[parent.pid]["devices"].values()
        assert moved["write"] == 301_001
        assert answers[pid]["devices"] == {}  # it has moved nothing
        assert answers[pid]["handles"] == []  # its parent's handles are closed to it
        parent.kill()
        parent.wait()
        assert set(endpoints.living_endpoints()) == {pid}
        os.kill(pid, signal.SIGKILL)


def _paths(place: Path) -> list[tuple[int, Path]]:
    return [(int(path.stem), path) for path in place.glob("*.sock")]


@pytest.mark.parametrize("terminal", [True, False])
def test_reports_go_on_until_nobody_is_left(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
) -> None:
    own = stats_server.sample()
    shown = [{1: dict(own, pid=1)}, {1: dict(own, pid=1, devices={})}, {}]
    monkeypatch.setattr(top, "_samples", lambda pid: shown.pop(0))
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    assert top.print_top(None, False, False, 0.0) == 0
    assert shown == []
    assert "process 1:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("failure", "status", "words"),
    [(KeyboardInterrupt(), 0, ""), (PermissionError(13, "no [entry]"), 1, "no [entry]")],
)
def test_how_it_ends(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    status: int,
    words: str,
) -> None:
    def fail(pid: int | None) -> Any:
        raise failure

    monkeypatch.setattr(top, "_samples", fail)
    assert top.print_top(None, True, False, 0.0) == status
    assert words in capsys.readouterr().err


def test_settings(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stats_server, "_state", stats_server._State())
    for value in ("", "0", "No"):
        monkeypatch.setenv("DEEPNVME_TOP", value)
        aio.aio_handle().close()
    assert not place.exists()
    monkeypatch.setenv("DEEPNVME_TOP", "perhaps")
    with pytest.raises(ValueError, match="DEEPNVME_TOP is 'perhaps'"):
        aio.aio_handle()
    place.write_text("a file where the directory should be")
    monkeypatch.setenv("DEEPNVME_TOP", "1")
    for _ in range(2):
        aio.aio_handle().close()  # goes on without
    (record,) = caplog.records
    assert "cannot look at this process" in record.message
    with pytest.raises(PermissionError):
        aio.serve_stats()


def sample(number: int, nbytes: int, when: float) -> dict[str, Any]:
    ways = {"direct": nbytes, "fixed": 0, "staged": 1, "buffered": 0}
    stats = {"bytes": {"read": ways, "write": dict.fromkeys(ways, nbytes)}}
    return {"time": when, "devices": {}, "handles": [{"number": number, "stats": stats}]}


def test_rates_are_between_two_samples() -> None:
    first, second = sample(7, 100, 10.0), sample(7, 350, 12.5)
    assert top._report(second, first)["handles"][0]["rate"] == {"read": 100.0, "write": 400.0}
    new = top._report(sample(8, 350, 12.5), first)["handles"][0]
    assert new["rate"] == {"read": None, "write": None}


def test_names_of_devices() -> None:
    assert top.device_name("0:0") == "other"
    for device in Path("/sys/dev/block").iterdir():
        assert Path("/sys/class/block", top.device_name(device.name)).exists()
        break
    proc = os.stat("/proc").st_dev
    assert top.device_name(f"{os.major(proc)}:{os.minor(proc)}") == "proc"


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "1e6"])
def test_an_interval_that_is_none(
    place: Path, capsys: pytest.CaptureFixture[str], interval: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["top", "--once", "--interval", interval])
    words = capsys.readouterr().err
    assert f"--interval is {float(interval):g}, but must be more than 0 and less than" in words
    assert not place.exists()
