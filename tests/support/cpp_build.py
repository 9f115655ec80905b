"""Builds of tests/cpp and tests/fuzz, which share their objects: one at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
LOCK = TESTS.parent / "build" / "cpp.lock"
BUILD_HANG_S = 900
HANG_S = 300


def run(*command: str, cwd: Path, timeout: float = HANG_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd
    )


def skip_without_tools(sanitize: str, directory: Path) -> None:
    compiler = os.environ.get("CXX", "g++").split()
    for tool in ("make", compiler[0]):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if sanitize == "none":
        return
    source, program = directory / "main.cpp", directory / "main"
    source.write_text("int main() {}\n")
    flags = (f"-fsanitize={sanitize}", str(source), "-o", str(program))
    for command in ((*compiler, *flags), (str(program),)):
        done = run(*command, cwd=directory)
        if done.returncode != 0:
            pytest.skip(f"no programs with -fsanitize={sanitize} here: {done.stderr.strip()}")


def executables(folder: str, *options: str) -> dict[str, str]:
    """The programs of tests/`folder`, built; the path of each by name."""
    make = ("make", "--no-print-directory", *options)
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = run(*make, "all", cwd=TESTS / folder, timeout=BUILD_HANG_S)
    assert built.returncode == 0, f"{built.stdout}\n{built.stderr}"
    listed = run(*make, "list", cwd=TESTS / folder)
    return {Path(line).name: line for line in listed.stdout.split()}
