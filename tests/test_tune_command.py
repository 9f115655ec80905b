"""ds_nvme_tune prints DeepSpeed's line and JSON, saves a profile that is used, and leaves nothing
else (H-01, H-02).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import aio
from aio.measure import command, fio
from aio.options import HandleOptions
from aio.profiles import ProfileError, find_profile, load_profile
from aio.tune import against_fio, arguments
from aio.tune.__main__ import _tell, main
from aio.tune.logs import write_logs
from aio.tune.session import Deadline, Session
from support.child import HANG_S, TESTS
from support.tuning import FakeDrive

SMALL = ("--io_size", "4M", "--time", str(HANG_S))
SWEEP = {"block_size": ["256K", "1M"], "queue_depth": [8], "sequential_requests": [False, True]}
BEST = re.compile(r"^Best performance \(GB/sec\): read = +(\S+), write = +(\S+)$", re.MULTILINE)

# The types that DeepSpeed's configuration takes; its own tuner prints strings, and num_threads.
AIO_TYPES = {
    "block_size": int,
    "queue_depth": int,
    "intra_op_parallelism": int,
    "single_submit": bool,
    "overlap_events": bool,
}


@pytest.fixture(autouse=True)
def _configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DEEPNVME_BACKEND", raising=False)


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(SWEEP))
    return str(path)


def tune(*arguments: object) -> int:
    return main([*SMALL, *map(str, arguments)])


def aio_of(output: str) -> dict[str, Any]:
    """The configuration that the output ends with."""
    section: dict[str, Any] = json.loads(output[output.index("{") :])
    assert list(section) == ["aio"]
    values: dict[str, Any] = section["aio"]
    return values


def test_what_it_prints_and_saves(
    directory: Path,
    tmp_path: Path,
    sweep: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(against_fio, "ROUNDS", 1)
    report, written = tmp_path / "out.html", tmp_path / "out.json"
    kept = ("--report", report, "--json", written)
    assert tune("--nvme_dir", directory, "--sweep_config", sweep, *kept) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rates = BEST.search(out)
    assert rates is not None
    assert float(rates[1]) > 0
    assert float(rates[2]) > 0
    values = aio_of(out)
    assert {name: type(value) for name, value in values.items()} == AIO_TYPES
    assert "writes overwrite allocated blocks" in out
    assert "O_DIRECT" in out or "page cache" in out or "in memory" in out

    profile = find_profile(directory)
    assert profile is not None
    assert profile.options.as_dict().items() >= values.items()
    assert profile.read is not None
    assert profile.write is not None
    with aio.aio_handle(profile=directory) as handle:
        assert handle.get_queue_depth() == values["queue_depth"]
        assert handle.get_block_size() == values["block_size"]

    found = json.loads(written.read_text())
    assert found["aio"] == values
    assert set(found["directions"]) == {"read", "write"}
    for part in found["directions"].values():
        for entry in part["final"]:
            nbytes = {run["nbytes"] for run in entry["runs"]}
            assert nbytes <= {found["work"]["bytes_per_run"], 4 << 20}
    if fio.version() is not None:
        assert set(found["fio"]) == {"read", "write"} or found["fio_missing"]
    assert json.dumps(found["both"]) in report.read_text()
    assert os.listdir(directory) == []


def test_without_a_sweep_file(tmpfs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--nvme_dir", tmpfs, "--no_read", "--io_size", "1M") == 0
    out = capsys.readouterr().out
    assert "default" in out
    assert {name: type(value) for name, value in aio_of(out).items()} == AIO_TYPES


@pytest.mark.parametrize(("left_out", "other"), [("--no_read", "write"), ("--no_write", "read")])
def test_one_direction(
    tmpfs: Path, sweep: str, left_out: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune("--nvme_dir", tmpfs, "--sweep_config", sweep, left_out) == 0
    rates = BEST.search(capsys.readouterr().out)
    assert rates is not None
    by_name = {"read": rates[1], "write": rates[2]}
    assert float(by_name.pop(other)) > 0
    assert list(by_name.values()) == ["n/a"]
    profile = find_profile(tmpfs)
    assert profile is not None
    assert getattr(profile, other).options == profile.options
    assert [profile.read, profile.write].count(None) == 1


def test_the_json_has_standard_output_to_itself(
    tmpfs: Path, sweep: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fio, "version", lambda: None)
    assert tune("--nvme_dir", tmpfs, "--sweep_config", sweep, "--json", "-", "--no_profile") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert BEST.search(err)
    assert found["fio_missing"] == "fio is not installed: apt-get install fio"
    candidates = found["directions"]["read"]["searches"][0]["candidates"]
    tried = {
        (entry["options"]["block_size"], entry["options"]["overlap_events"]) for entry in candidates
    }
    assert tried == {(1 << 18, True), (1 << 18, False), (1 << 20, True), (1 << 20, False)}
    assert find_profile(tmpfs) is None


def test_logs_that_tools_for_deepspeed_read(tmpfs: Path, sweep: str, tmp_path: Path) -> None:
    """By the rules of its parser: the name is options with underscores, of one line the last but
    one word is the rate.
    """
    logs = tmp_path / "logs"
    tuned = ("--nvme_dir", tmpfs, "--sweep_config", sweep, "--log_dir", logs, "--no_profile")
    assert tune(*tuned) == 0
    for direction in ("read", "write"):
        files = list((logs / f"_aio_bench_{direction}_logs").iterdir())
        keys = {tuple(file.stem.split("_")) for file in files}
        usual = (direction, "block", "overlap", "ftd1", "d128", "bs1M", "p1")  # the defaults
        assert keys - {usual} == {
            (direction, "block", order, "ftd1", "d8", block, "p1")
            for order in ("overlap", "sequential")
            for block in ("bs256K", "bs1M")
        }
        for file in files:
            lines = [
                line
                for line in file.read_text().splitlines()
                if line.startswith(f"E2E {direction.title()} Speed")
            ]
            assert len(lines) == 1
            assert float(lines[0].split()[-2]) > 0


def test_two_drives_together(
    disk: Path, tmpfs: Path, sweep: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune("--nvme_dir", disk, tmpfs, "--sweep_config", sweep, "--verbose") == 0
    assert "search, read: 256 KiB x 8" in capsys.readouterr().err
    profile = find_profile([tmpfs, disk])
    assert profile is not None
    assert profile.directories == (str(disk), str(tmpfs))
    assert find_profile(disk) is None


def test_a_profile_elsewhere(tmpfs: Path, sweep: str, tmp_path: Path) -> None:
    path = tmp_path / "made" / "mine.json"
    assert tune("--nvme_dir", tmpfs, "--sweep_config", sweep, "--profile", path, "--no_write") == 0
    assert isinstance(load_profile(path).options, HandleOptions)
    assert find_profile(tmpfs) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gds",), "GPUDirect Storage"),
        (("--no_read", "--no_write"), "nothing to measure"),
        (("--nvme_dir", "/no/such/place"), "/no/such/place does not exist"),
        (("--io_size", "4Q"), "4Q"),
        (("--loops", "0"), "at least 1"),
        (("--time", "0"), "seconds"),
        (("--time", "nan"), "seconds"),
        (("--time", "soon"), "seconds"),
        (("--report", "/no/such/place/x.html"), "--report"),
        (("--report", "-"), "--report"),
        (("--json", "/no/such/place/x.json"), "--json"),
        (("--log_dir", "/proc/no"), "--log_dir"),
        (("--profile", "/proc/no/x"), "/proc/no"),
        (("--profile", "/"), "is a folder"),
        (("--profile", "x", "--no_profile"), "not allowed with"),
        (("--sweep_config", "/dev/null"), "no sweep file"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    tmpfs: Path, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = tune("--nvme_dir", tmpfs, *arguments)
    except SystemExit as exit:  # as argparse ends
        status = int(exit.code or 0)
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    assert err.startswith("ds_nvme_tune: error: ")
    assert words in err
    assert err.count("\n") == 1
    assert os.listdir(tmpfs) == []


def test_an_engine_that_is_not_known(
    tmpfs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPNVME_BACKEND", "spdk")
    assert tune("--nvme_dir", tmpfs) == 2
    assert "spdk" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_to(
    tmpfs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may
    assert tune("--nvme_dir", tmpfs, "--profile", tmp_path / "x") == 2
    assert f"{tmp_path} cannot be written to" in capsys.readouterr().err


def test_directories_share_the_devices_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "get_accelerator", lambda: SimpleNamespace(name="cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    given = SimpleNamespace(gds=False, gpu=True)
    found = arguments._devices(given, 3)
    assert found == tuple(torch.device("cuda", index) for index in (0, 1, 0))


def test_notes_reach_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    slow = FakeDrive(lambda direction, options: 1e8)
    candidates = [HandleOptions(queue_depth=depth) for depth in (8, 32, 64, 128, 256)]
    found = Session(slow, ("read",), candidates, (), Deadline(20.0, slow.clock)).run()
    assert found.notes
    settings: Any = SimpleNamespace(json=None, profile=None, directories=["/mnt/[x]"])
    _tell(settings, found, {"described": "what moved", "fio": {}})
    out = capsys.readouterr().out
    for words in (*found.notes, "/mnt/[x]", "what moved"):
        assert words in out


@pytest.mark.parametrize(
    ("nbytes", "name"), [(1 << 20, "bs1M"), (256 << 10, "bs256K"), (1000, "bs1000")]
)
def test_names_of_logs(nbytes: int, name: str, tmp_path: Path) -> None:
    drive = FakeDrive(lambda direction, options: 1e9)
    candidates = [HandleOptions(block_size=nbytes, backend=backend) for backend in ("posix", "x")]
    found = Session(drive, ("read",), candidates, (), Deadline(60.0, drive.clock)).run()
    write_logs(tmp_path, found, 1)
    names = [path.name for path in (tmp_path / "_aio_bench_read_logs").iterdir()]
    assert [part for part in names if f"_{name}_" in part] != []
    assert len(names) == len(set(names))


def test_a_gpu_that_is_not_there(tmpfs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pinned_manager import get_accelerator

    if get_accelerator().name != "cpu":
        pytest.skip("this machine has an accelerator")
    assert tune("--nvme_dir", tmpfs, "--gpu") == 2
    assert "no accelerator" in capsys.readouterr().err


def test_a_sweep_for_an_engine_that_there_is_not(
    tmpfs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aio.tune.__main__.available_backends", lambda: ["posix"])
    path = tmp_path / "sweep.json"
    path.write_text('{"backend": ["libaio"]}')
    assert tune("--nvme_dir", tmpfs, "--sweep_config", path) == 2
    assert "libaio cannot run here" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("--io_size", "100T"), ("--time", "1e-9")])
def test_what_fails_is_one_line(
    tmpfs: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune("--nvme_dir", tmpfs, *arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ds_nvme_tune: error: ")
    assert err.count("\n") == 1
    assert os.listdir(tmpfs) == []
    with pytest.raises((FileNotFoundError, ProfileError)):
        aio.aio_handle(profile=tmpfs)


@pytest.mark.parametrize(
    ("number", "status", "place"),
    [
        (signal.SIGINT, 130, "disk"),
        (signal.SIGTERM, 143, "tmpfs"),
        (signal.SIGKILL, -signal.SIGKILL, "disk"),
    ],
)
def test_however_it_ends_nothing_is_left(
    request: pytest.FixtureRequest, tmp_path: Path, number: signal.Signals, status: int, place: str
) -> None:
    directory = request.getfixturevalue(place)
    command = [sys.executable, "-m", "aio.tune", "--nvme_dir", str(directory), "--verbose"]
    child = subprocess.Popen(
        [*command, "--io_size", "4M", "--time", str(HANG_S)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=TESTS.parent,
        # A shell that runs tests in the background has them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert child.stderr is not None
    assert "first look" in child.stderr.readline()
    child.send_signal(number)
    out, err = child.communicate(timeout=HANG_S)
    assert child.returncode == status
    assert out == ""
    assert "Traceback" not in err
    assert os.listdir(directory) == []
    assert list((tmp_path / "config").rglob("*.json")) == []
