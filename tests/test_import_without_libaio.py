"""The extension loads without libaio, liburing or any one torch on the machine (F-08)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import _deepnvme
import aio
from support.child import HANG_S, child_answer


def told_by(tool: str, *options: str) -> str:
    """What `tool` says of the extension."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    command = [tool, *options, _deepnvme.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S)
    return done.stdout


def needed() -> list[str]:
    """The shared objects that the extension asks the loader for."""
    told = told_by("readelf", "--dynamic")
    found = re.findall(r"\(NEEDED\).*\[(.*)\]", told)
    assert any(name.startswith("libc.so") for name in found), told
    return found


@pytest.mark.not_sanitized("it needs the libraries of the sanitizers")
def test_nothing_but_the_system_is_needed() -> None:
    """libaio.so.1 became libaio.so.1t64, and every torch has another ABI: a file that names them
    works on one machine.
    """
    allowed = re.compile(
        r"(ld-linux.*|libc|libm|libpthread|librt|libdl|libgcc_s|libstdc\+\+)\.so\.\d+"
    )
    assert [name for name in needed() if not allowed.fullmatch(name)] == []


def test_the_whole_tree_of_needs() -> None:
    told = told_by("ldd")
    assert "not found" not in told
    for name in ("libaio", "liburing", "libtorch", "libc10"):
        assert name not in told


def test_no_symbol_of_a_version_is_asked_for() -> None:
    """io_pgetevents is not in every libaio: whatever is used of the libraries is linked in."""
    names = [line.split()[-1] for line in told_by("nm", "-D", "--undefined-only").splitlines()]
    assert any(name.startswith("pthread_") for name in names)
    assert [name for name in names if name.startswith(("io_", "aio_", "__io_uring"))] == []


def test_nothing_but_its_entry_is_offered() -> None:
    """Whoever has another libaio in the process does not get ours, nor we theirs."""
    names = [line.split()[1:] for line in told_by("nm", "-D", "--defined-only").splitlines()]
    assert [name for kind, name in names if kind != "A"] == ["PyInit__deepnvme@@DEEPNVME"]


def test_broken_libraries_on_the_way(disk: Path, tmp_path: Path) -> None:
    """Whatever the loader finds by those names, the engines are the same, and move bytes."""
    for name in ("libaio.so.1", "libaio.so.1t64", "liburing.so.2"):
        (tmp_path / name).write_bytes(b"not a library")
    script = """
import json, sys
import aio
moved = {}
for backend in aio.available_backends():
    with aio.aio_handle(backend=backend) as handle:
        handle.async_pwrite(b"whole" * 1000, sys.argv[1])
        counted = handle.wait()
    moved[backend] = counted == 1 and open(sys.argv[1], "rb").read() == b"whole" * 1000
print(json.dumps(moved))
"""
    answer = child_answer(script, disk / "file", environment={"LD_LIBRARY_PATH": str(tmp_path)})
    assert answer == dict.fromkeys(aio.available_backends(), True)


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
