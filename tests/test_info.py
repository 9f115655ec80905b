"""deepnvme info prints directories of any name and kind, and what it cannot find out."""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import json
import os
import re
from pathlib import Path

import pytest

import aio
from aio.info import machine_info, print_info
from support.mounts import ramfs


@pytest.mark.parametrize("name", ["plain", "[red]", "[/red]", "with [/] in it"])
@pytest.mark.parametrize("there", [False, True])
def test_names_are_not_markup(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    there: bool,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    directory = tmp_path / name
    if there:
        directory.mkdir(parents=True)
    print_info([str(directory)], as_json=False)
    shown = capsys.readouterr().out
    assert "".join(str(directory).split()) in "".join(shown.split())  # it is wrapped anywhere
    assert ("file system" in shown) is there


def test_a_directory_without_direct_io(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In memory, so that there is no drive with a queue either."""
    with ramfs(tmp_path / "ramfs") as directory:
        (found,) = machine_info([str(directory)])["directories"]
        print_info([str(directory)], as_json=False)
    assert (found["direct"], found["refused"], found["queue"]) == (False, True, {})
    shown = " ".join(capsys.readouterr().out.split())
    assert "buffered (the file system refuses O_DIRECT)" in shown
    assert "alignment" not in shown  # any will do


def test_what_the_kernel_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of an older one, or in a container that hides it."""
    read = Path.read_text
    hidden = {
        "/proc/sys/kernel/io_uring_disabled": errno.ENOENT,
        "/sys/kernel/mm/transparent_hugepage/enabled": errno.EACCES,
    }

    def hide(path: Path) -> str:
        if str(path) in hidden:
            raise OSError(hidden[str(path)], os.strerror(hidden[str(path)]), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_text", hide)
    print_info([], as_json=True)
    found = json.loads(capsys.readouterr().out)
    limits, memory = found["kernel_limits"], found["memory"]
    assert limits["kernel.io_uring_disabled"] == "not readable (No such file or directory)"
    assert memory["transparent_huge_pages"] == "not readable (Permission denied)"
    assert limits["fs.aio-max-nr"] == read(Path("/proc/sys/fs/aio-max-nr")).strip()


def test_a_tree_that_was_never_installed_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    before = aio.__version__
    try:
        with monkeypatch.context() as patch:
            patch.setattr(importlib.metadata, "version", none)
            importlib.reload(aio)
        assert re.fullmatch(r"\d+\+[a-z]+", aio.__version__)  # older than any, by PEP 440
        assert machine_info([])["versions"]["deepnvme"] == aio.__version__
    finally:
        importlib.reload(aio)
    assert aio.__version__ == before
