"""A child that hangs leaves nothing running, also what its wrapper has started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.child import run_child
from support.counters import until

SCRIPT = """
import os, signal, sys
os.mkdir(f"{sys.argv[1]}/{os.getpid()}")
signal.pause()
"""


def test_the_child_of_a_wrapper_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(self: Any, timeout: float) -> Any:
        until(lambda: any(tmp_path.iterdir()), "it runs")
        raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", hang)
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(SCRIPT, tmp_path, wrapper=["sh", "-c", '"$@" & wait', "sh"])
    (name,) = os.listdir(tmp_path)
    until(lambda: _is_gone(int(name)), "it ends")


def _is_gone(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return "State:\tZ" in status  # killed; whoever adopted it has not looked yet
