"""Under sanitizers (make test-asan) children run the sanitized code too; reports are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.child import child_answer, run_child
from support.faulty_build import SANITIZED

pytestmark = pytest.mark.skipif(not SANITIZED, reason="only where make test-asan runs the tests")

ROOT = Path(__file__).resolve().parents[1]

# A byte too many, written by libc for the interpreter: no code of the library has to be wrong.
OVERFLOW = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset(ctypes.c_void_p(libc.malloc(8)), 0, 9)
"""


def test_children_load_the_sanitized_extension() -> None:
    script = "import json, _deepnvme; print(json.dumps(_deepnvme.__file__))"
    assert Path(child_answer(script)).parent == ROOT / "build" / "asan"


def test_what_a_child_does_wrong_is_written_down(tmp_path: Path) -> None:
    elsewhere = f":log_path={tmp_path / 'report'}"
    options = {name: os.environ[name] + elsewhere for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS")}
    done = run_child(OVERFLOW, environment=options)
    assert done.returncode != 0
    (report,) = tmp_path.iterdir()
    assert "heap-buffer-overflow" in report.read_text()
