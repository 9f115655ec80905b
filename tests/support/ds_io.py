"""ds_io in this process: its exit status, its lines, its JSON, what scripts read of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aio.ds_io.__main__ import main

MIB = 1 << 20


@dataclass
class Run:
    """One run of the command."""

    status: int
    out: str
    err: str
    json: dict[str, Any] = field(default_factory=dict)

    def metric(self, name: str) -> float:
        """As DeepSpeed's perf tools read it: the last but one word of the line that starts so."""
        found = [line for line in self.out.splitlines() if line.startswith(name)]
        assert len(found) == 1, self.out
        return float(found[0].split()[-2])

    def seconds(self, name: str) -> float:
        found = re.search(rf"^{name} Latency = (\S+) sec$", self.out, re.MULTILINE)
        assert found is not None, self.out
        return float(found[1])

    def told(self, label: str) -> str:
        """What a line of the report's header says."""
        found = re.search(rf"^{label} +(.*)$", self.out, re.MULTILINE)
        assert found is not None, self.out
        return found[1]


class DsIo:
    """Runs the command on a folder; every run but an error is also read from its JSON."""

    def __init__(self, folder: Path, json_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._json_path = json_path
        self._capsys = capsys

    def __call__(self, *arguments: object, where: bool = True) -> Run:
        """`where` is whether to say --folder."""
        place = ["--folder", str(self.folder)] if where else []
        given = [*place, *map(str, arguments), "--json", str(self._json_path)]
        self._capsys.readouterr()
        try:
            status = main(given)
        except SystemExit as ended:  # argparse ends like this
            status = int(ended.code or 0)
        output = self._capsys.readouterr()
        run = Run(status, output.out, output.err)
        if status == 0:
            run.json = json.loads(self._json_path.read_text())
        return run

    def measure(self, *arguments: object, where: bool = True) -> Run:
        """A run that has to succeed, and leave nothing."""
        run = self(*arguments, where=where)
        assert run.status == 0, run.err
        assert list(self.folder.iterdir()) == []
        return run

    def refuse(self, status: int, *arguments: object, where: bool = True) -> str:
        """The one line of a run that has to fail, and leave nothing."""
        run = self(*arguments, where=where)
        assert run.status == status, run.out + run.err
        assert run.out == ""
        assert len(run.err.splitlines()) == 1, run.err
        assert run.err.startswith("ds_io: error: ")
        if self.folder.is_dir():
            assert list(self.folder.iterdir()) == []
        return run.err
