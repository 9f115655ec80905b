"""The extension loads without libaio, liburing or any one torch on the machine (F-08)."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

import _deepnvme
from support.child import child_answer


def needed() -> list[str]:
    """The shared objects that the extension asks the loader for."""
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed")
    told = subprocess.run(
        ["readelf", "--dynamic", _deepnvme.__file__],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    found = re.findall(r"\(NEEDED\).*\[(.*)\]", told)
    assert any(name.startswith("libc.so") for name in found), told
    return found


def test_nothing_but_the_system_is_needed() -> None:
    """libaio.so.1 became libaio.so.1t64, and every torch has another ABI: a file that names them
    works on one machine.
    """
    allowed = re.compile(
        r"(ld-linux.*|libc|libm|libpthread|librt|libdl|libgcc_s|libstdc\+\+)\.so\.\d+"
    )
    assert [name for name in needed() if not allowed.fullmatch(name)] == []


def test_the_whole_tree_of_needs() -> None:
    if shutil.which("ldd") is None:
        pytest.skip("ldd is not installed")
    told = subprocess.run(
        ["ldd", _deepnvme.__file__], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert "not found" not in told
    for name in ("libaio", "liburing", "libtorch", "libc10"):
        assert name not in told


def test_import_needs_no_torch() -> None:
    """The extension itself; only the Python layer above it knows tensors."""
    script = """
import json, sys
import _deepnvme
print(json.dumps([name for name in ("torch", "numpy") if name in sys.modules]))
"""
    assert child_answer(script) == []


def test_every_engine_is_reported_with_a_reason() -> None:
    reports = {found["name"]: found for found in _deepnvme.io.probe()}
    assert set(reports) == {"io_uring", "libaio", "posix"}
    assert reports["posix"]["built"] is True
    for report in reports.values():
        assert report["usable"] == (report["reason"] in ("", None))
        assert report["built"] or not report["usable"]
