"""ds_io's JSON has every sample and what it is of; alone on standard output when asked."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from aio.ds_io.__main__ import main
from support.ds_io import MIB, DsIo

pytest_plugins = ["support.ds_io_fixture"]

NUMBER = (int, float)
RESULTS: dict[str, Any] = {
    "path": str, "bytes_by_path": dict, "file": str, "cached": (float, type(None)), "memory": str,
    "loops": int, "bytes": int, "bytes_asked": int, "validated": bool, "cpu_seconds": NUMBER,
    "task": dict, "e2e": dict, "durability": str,
}  # fmt: skip
PROCESS: dict[str, Any] = {
    "seconds": float, "bytes": int, "bytes_by_path": dict, "cpu_seconds": NUMBER, "file": str,
    "cached": (float, type(None)),
}  # fmt: skip


def fits(value: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert value.keys() == wanted.keys()
    for name, kind in wanted.items():
        assert isinstance(value[name], kind), name


@pytest.mark.parametrize("reading", [False, True])
def test_its_shape(ds_io: DsIo, reading: bool) -> None:
    found = ds_io.measure("--io_size", "1M", *(["--read"] if reading else [])).json
    assert found["schema"] == 1
    assert found["operation"] == ("read" if reading else "write")
    assert found["options"]["io_size"] == MIB
    assert found["options"]["folders"] == [str(ds_io.folder)]
    assert found["machine"]["kernel"]
    assert found["machine"]["command"].startswith("ds_io")
    assert [folder["directory"] for folder in found["folders"]] == [str(ds_io.folder)]
    assert found["fio"] is None
    fits(found["results"], RESULTS)
    assert len(found["loops"]) == 4
    for loop in found["loops"]:
        fits(loop, {"counted": bool, "seconds": float, "bytes": int, "processes": list})
        for process in loop["processes"]:
            fits(process, PROCESS)
            assert sum(process["bytes_by_path"].values()) == process["bytes"] == MIB
    assert [latency["count"] for latency in found["latency"]] == [4]


def test_the_printed_lines_have_the_same_numbers(ds_io: DsIo) -> None:
    run = ds_io.measure("--io_size", "1M")
    results = run.json["results"]
    assert run.metric("E2E Write Speed") == results["e2e"]["gib_per_second"]
    assert run.metric("Task Write Speed") == results["task"]["gib_per_second"]
    assert run.seconds("E2E Write") == results["e2e"]["seconds"]
    assert run.told("path") == results["path"]


def test_alone_on_standard_output(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--folder", str(disk), "--io_size", "1M", "--loops", "1", "--json", "-"]
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["results"]["bytes"] == MIB
    assert "E2E Write Speed = " in output.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["--folder", str(disk), "--io_size", "1M", "--loops", "1"]) == 0
    assert "write:" in terminal.getvalue()


def test_no_bar_where_there_is_no_terminal(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--folder", str(disk), "--io_size", "1M", "--loops", "1"]) == 0
    assert capsys.readouterr().err == ""
