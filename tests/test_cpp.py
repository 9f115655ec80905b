"""The C++ tests pass as they are built by default and under the sanitizers, without Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support import cpp_build

CPP = Path(__file__).resolve().parent / "cpp"
NAMES = sorted(path.stem for path in CPP.glob("test_*.cpp"))
SANITIZERS = ("none", "address,undefined", "thread")

pytestmark = pytest.mark.cpp


@pytest.fixture(scope="module", params=SANITIZERS)
def executables(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Every C++ test, built; the path of each by name."""
    sanitize: str = request.param
    cpp_build.skip_without_tools(sanitize, tmp_path_factory.mktemp("sanitizer"))
    return cpp_build.executables("cpp", f"SANITIZE={sanitize}")


@pytest.mark.parametrize("name", NAMES)
def test_cpp(executables: dict[str, str], name: str, disk: Path) -> None:
    done = subprocess.run(
        [executables[name]],
        env={**os.environ, "TMPDIR": str(disk)},
        capture_output=True,
        text=True,
        timeout=cpp_build.HANG_S,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert not list(disk.iterdir()), "it left files behind"
