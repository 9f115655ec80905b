"""ds_io that cannot do what is asked says so in one line, with what to do, and leaves nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aio.ds_io.__main__ import main
from aio.ds_io.engines import HandleEngine
from aio.measure import fio, room
from support.child import HANG_S
from support.ds_io import DsIo
from support.mounts import mounted

pytest_plugins = ["support.ds_io_fixture"]

SIZE = ("--io_size", "1M")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "--io_size"),
        (("--io_size", "lots"), "'lots' is no size"),
        (("--io_size", "0"), "from 1"),
        ((*SIZE, "--gpu"), "no accelerator on this machine; leave out --gpu"),
        ((*SIZE, "--gpu", "--use_gds"), "no GPUDirect Storage here"),
        ((*SIZE, "--use_gds"), "no GPUDirect Storage here"),
        ((*SIZE, "--engine", "aio"), "there are aio_handle, aio_basic, torch_io, torch_fastio"),
        ((*SIZE, "--engine", "torch_fastio", "--read"), "use torch_io"),
        ((*SIZE, "--backend", "spdk"), "must be one of auto, io_uring, libaio, posix"),
        ((*SIZE, "--engine", "torch_io", "--backend", "spdk"), "must be one of"),
        ((*SIZE, "--multi_process", "0"), "give at least 1"),
        ((*SIZE, "--loops", "0"), "give at least 1"),
        ((*SIZE, "--loops", "-1"), "no number"),
        ((*SIZE, "--queue_depth", "0"), "give at least 1"),
        ((*SIZE, "--fio", "--block_size", "3K"), "no multiple of --block_size 3072"),
        ((*SIZE, "--what"), "--what"),
        ((*SIZE, "--folder_to_device_mapping", "/tmp:0"), "not allowed with"),
    ],
)
def test_what_cannot_be_done(ds_io: DsIo, flags: tuple[str, ...], words: str) -> None:
    assert words in ds_io.refuse(2, *flags)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--queue_depth", "99999"), "queue_depth is 99999, but must be between"),
        (("--block_size", "9223372036854775807"), "block_size is 9223372036854775807"),
        (("--io_parallel", "99999"), "intra_op_parallelism is 99999"),
    ],
)
def test_what_the_handle_refuses(ds_io: DsIo, flags: tuple[str, ...], words: str) -> None:
    assert words in ds_io.refuse(1, *SIZE, *flags)


def test_no_folder_at_all(ds_io: DsIo) -> None:
    assert "--folder" in ds_io.refuse(2, *SIZE, where=False)


def test_folders_that_will_not_do(disk: Path, ds_io: DsIo, tmp_path: Path) -> None:
    missing, file = tmp_path / "missing", tmp_path / "file"
    file.touch()
    for place, words in ((missing, f"{missing} does not exist"), (file, f"{file} is no folder")):
        assert words in ds_io.refuse(2, *SIZE, "--folder", place, where=False)
        pair = f"{place}:0"
        assert words in ds_io.refuse(2, *SIZE, "--folder_to_device_mapping", pair, where=False)


def test_a_folder_that_cannot_be_written_to(ds_io: DsIo, tmp_path: Path) -> None:
    with mounted(tmp_path / "drive", "-t", "tmpfs", "-o", "ro", "none") as drive:
        words = ds_io.refuse(2, *SIZE, "--folder", drive, where=False)
    assert f"{drive} cannot be written to" in words


@pytest.mark.parametrize("pair", ["here", "here:", ":1", "here:x", "here:-1", "here:1:"])
def test_a_pair_that_is_none(ds_io: DsIo, pair: str) -> None:
    words = ds_io.refuse(2, *SIZE, "--folder_to_device_mapping", pair, where=False)
    assert f"{pair}: give FOLDER:NUMBER" in words


def test_another_number_of_processes_than_of_folders(ds_io: DsIo, disk: Path) -> None:
    pairs = ("--folder_to_device_mapping", f"{disk}:0", f"{disk}:1")
    assert "has 2 pairs" in ds_io.refuse(2, *SIZE, *pairs, "--multi_process", 3, where=False)


def test_a_json_that_cannot_be_written(ds_io: DsIo, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "file"):
        ds_io._json_path = path
        assert f"--json {path}: cannot be written" in ds_io.refuse(2, *SIZE)


def test_fio_that_is_not_there(ds_io: DsIo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fio.shutil, "which", lambda _: None)
    words = ds_io.refuse(2, *SIZE, "--fio")
    assert "apt-get install fio, or leave out --fio" in words


def test_more_memory_than_there_is(ds_io: DsIo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "available_memory", lambda: 3 << 20)
    assert "2 MiB of memory" not in ds_io.measure(*SIZE).err
    words = ds_io.refuse(1, *SIZE, "--multi_process", 4)
    assert "4 MiB of memory needed, 3 MiB available" in words


def test_interrupted_in_a_loop(ds_io: DsIo, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(this: HandleEngine, loop: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(HandleEngine, "transfer", interrupt)
    assert "interrupted" in ds_io.refuse(130, *SIZE)


def test_terminated_in_a_loop(ds_io: DsIo, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def terminate(this: HandleEngine, loop: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(HandleEngine, "transfer", terminate)
    ended = ds_io(*SIZE)
    assert (ended.status, ended.out) == (128 + signal.SIGTERM, "")
    assert list(ds_io.folder.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


INTERRUPTED = """
import runpy
from aio.ds_io.worker import ManyProcesses

loop = ManyProcesses.loop

def told(team, number):
    if number == 2:
        print("looping", flush=True)
    return loop(team, number)

ManyProcesses.loop = told
runpy.run_module("aio.ds_io", run_name="__main__", alter_sys=True)  # as python -m
"""


def test_interrupted_as_from_a_terminal(disk: Path) -> None:
    """Ctrl-C reaches the whole process group: the parent tells, its processes say nothing."""
    flags = ("--folder", str(disk), *SIZE, "--multi_process", "2", "--loops", "999999")
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "looping\n"
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=HANG_S)
    finally:
        child.kill()
    assert (child.returncode, out) == (130, "")
    assert err == "ds_io: error: interrupted; its files are deleted\n"
    assert list(disk.iterdir()) == []


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert capsys.readouterr().out.startswith("usage: ds_io")


def test_the_command_is_installed() -> None:
    scripts = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert 'ds_io = "aio.ds_io.__main__:main"' in scripts
    if shutil.which("ds_io"):
        done = subprocess.run(["ds_io", "--help"], capture_output=True, text=True, check=False)
        assert "--io_size" in done.stdout
