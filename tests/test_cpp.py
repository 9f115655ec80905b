"""The C++ tests pass as they are built by default and under the sanitizers, without Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CPP = Path(__file__).resolve().parent / "cpp"
NAMES = sorted(path.stem for path in CPP.glob("test_*.cpp"))
SANITIZERS = ("none", "address,undefined", "thread")
BUILD_HANG_S = 900
HANG_S = 300

pytestmark = pytest.mark.cpp


def _run(*command: str, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, cwd=CPP
    )


def _make(sanitize: str, target: str) -> subprocess.CompletedProcess[str]:
    options = ("--no-print-directory", f"SANITIZE={sanitize}")
    return _run("make", *options, target, timeout=BUILD_HANG_S)


def _skip_without_tools(sanitize: str, directory: Path) -> None:
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
        done = _run(*command, timeout=HANG_S)
        if done.returncode != 0:
            pytest.skip(f"no programs with -fsanitize={sanitize} here: {done.stderr.strip()}")


@pytest.fixture(scope="module", params=SANITIZERS)
def executables(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Every C++ test, built; the path of each by name."""
    sanitize: str = request.param
    _skip_without_tools(sanitize, tmp_path_factory.mktemp("sanitizer"))
    built = _make(sanitize, "all")
    assert built.returncode == 0, f"{built.stdout}\n{built.stderr}"
    return {Path(line).name: line for line in _make(sanitize, "list").stdout.split()}


@pytest.mark.parametrize("name", NAMES)
def test_cpp(executables: dict[str, str], name: str, disk: Path) -> None:
    done = subprocess.run(
        [executables[name]],
        env={**os.environ, "TMPDIR": str(disk)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert not list(disk.iterdir()), "it left files behind"
