"""The soak runs, does work under faults in several processes, and finds no byte that differs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_a_few_seconds(disk: Path) -> None:
    search = filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])
    command = [sys.executable, "-m", "tests.soak", "--minutes", "0.1", "--dir", str(disk)]
    done = subprocess.run(
        [*command, "--seed", "7", "--processes", "2"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(re.findall(r"^(operations|bytes|differences) +(\d+)$", done.stdout, re.MULTILINE))
    assert int(counts["operations"]) > 0
    assert int(counts["bytes"]) > 0
    assert counts["differences"] == "0"
    assert list(disk.iterdir()) == []
