"""Engines are left out with a reason, compilers are taken as they come (F-08, F-09, F-10)."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.faulty_build import shipped_setup

ROOT = Path(__file__).resolve().parents[1]

# What conda has in CXXFLAGS: an older standard, no assertions, checks that need optimisation.
CONDA_FLAGS = "-fvisibility-inlines-hidden -std=c++17 -fno-plt -ffunction-sections -pipe -DNDEBUG"
CHECKED_FLAGS = f"{CONDA_FLAGS} -O2 -D_FORTIFY_SOURCE=2"

# Run as: LIBRARY ROOT FILE, where the new extension is in LIBRARY and hides the one in ROOT.
USE_IT = """
import json, os, sys
sys.path[:0] = sys.argv[1:3]
import _deepnvme, aio
with aio.aio_handle() as handle:
    written, read = bytearray(os.urandom(100_001)), bytearray(100_001)
    handle.sync_pwrite(written, sys.argv[3])
    handle.sync_pread(read, sys.argv[3])
    print(json.dumps({
        "file": _deepnvme.__file__,
        "engines": _deepnvme.io.probe(),
        "backend": handle.backend,
        "equal": read == written == open(sys.argv[3], "rb").read(),
    }))
"""


@pytest.fixture
def no_headers(tmp_path: Path) -> dict[str, str]:
    """An environment in which the headers of both libraries cannot be compiled."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for header in ("liburing.h", "libaio.h"):
        (hidden / header).write_text(f'#error "{header} is hidden by a test"\n')
    choices = ("DEEPNVME_WITHOUT", "DEEPNVME_BACKEND")
    environment = {name: os.environ[name] for name in os.environ if name not in choices}
    return environment | {"CPLUS_INCLUDE_PATH": str(hidden)}


@pytest.fixture
def conda(tmp_path: Path) -> dict[str, str]:
    """Variables with which a conda environment has its compiler called: by another name."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler by the name of c++ or g++")
    wrapper = tmp_path / "x86_64-conda-linux-gnu-c++"
    wrapper.write_text(f'#!/bin/sh\nexec {compiler} "$@"\n')
    wrapper.chmod(0o700)
    return {"CXX": str(wrapper), "CXXFLAGS": CONDA_FLAGS}


def run(*command: str, cwd: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.build
def test_extension_works_without_both_libraries(
    tmp_path: Path, no_headers: dict[str, str], conda: dict[str, str]
) -> None:
    # Nothing here depends on speed, and unoptimised code compiles in half the time.
    conda["CXXFLAGS"] += " -O0"
    environment = no_headers | conda | {"DEEPNVME_WITHOUT": "liburing,libaio"}
    library = tmp_path / "lib"
    build = ("setup.py", "build_ext", f"--build-lib={library}", f"--build-temp={tmp_path / 'temp'}")
    run(sys.executable, *build, cwd=ROOT, environment=environment)

    command = (sys.executable, "-c", USE_IT, str(library), str(ROOT), str(tmp_path / "moved"))
    found = json.loads(run(*command, cwd=tmp_path, environment=environment))
    assert found["file"].startswith(str(library))
    engines = {engine["name"]: engine for engine in found["engines"]}
    for name in ("io_uring", "libaio"):
        assert not engines[name]["built"]
        assert not engines[name]["usable"]
        assert "DEEPNVME_WITHOUT" in engines[name]["reason"]
    assert engines["posix"]["built"]
    assert engines["posix"]["usable"]
    assert found["backend"] == "posix"
    assert found["equal"]


@pytest.fixture
def setup_script() -> ModuleType:
    module: ModuleType = shipped_setup()
    return module


@pytest.fixture(params=["liburing", "libaio"])
def engine(request: pytest.FixtureRequest, setup_script: ModuleType) -> Any:
    """An engine that can be left out, as setup.py knows it."""
    return next(engine for engine in setup_script.ENGINES if engine.library == request.param)


@pytest.mark.build
def test_missing_header_is_the_reason(
    engine: Any,
    setup_script: ModuleType,
    no_headers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DEEPNVME_WITHOUT", raising=False)
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", no_headers["CPLUS_INCLUDE_PATH"])
    name, value = setup_script.probe(engine).define
    assert name == f"DEEPNVME_{engine.library.upper()}_REASON"
    assert f"{engine.library}.h is hidden by a test" in value


@pytest.mark.build
def test_reason_is_the_header_and_not_where_it_was_looked_for(
    setup_script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEEPNVME_WITHOUT", raising=False)
    found = setup_script.probe(setup_script.Engine("liburing", "#include <no_such_header.h>"))
    assert found.reason.startswith("no_such_header.h")
    assert "apt install liburing-dev" in found.remedy


@pytest.mark.parametrize(
    ("set_here", "missing"),
    [({}, "c++ or g++ or clang++"), ({"CXX": "/no/such/c++ -m64"}, "CXX=/no/such/c++ -m64")],
)
def test_no_compiler_is_said_at_once(
    set_here: dict[str, str],
    missing: str,
    setup_script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PATH": str(tmp_path), **set_here}.items():
        monkeypatch.setenv(name, value)
    said = re.escape(f"No C++ compiler: {missing} is not installed (apt install g++)")
    with pytest.raises(SystemExit, match=said):
        setup_script.use_a_compiler_that_exists()


@pytest.mark.build
def test_condas_compiler_finds_what_any_other_does(
    engine: Any, setup_script: ModuleType, conda: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that works is not left out because of the flags that it is tried with."""
    for name in ("DEEPNVME_WITHOUT", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)
    plain = setup_script.probe(engine)
    monkeypatch.setenv("CXX", conda["CXX"])
    monkeypatch.setenv("CXXFLAGS", CHECKED_FLAGS)
    assert setup_script.probe(engine) == plain


@pytest.mark.build
def test_an_unknown_name_of_a_library_is_refused(
    setup_script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPNVME_WITHOUT", "libaoi")
    with pytest.raises(SystemExit, match=r"DEEPNVME_WITHOUT.*libaoi.*liburing, libaio"):
        setup_script.named_by_the_user("DEEPNVME_WITHOUT")


@pytest.mark.build
def test_a_required_engine_is_not_left_out(
    engine: Any, setup_script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = setup_script.Probe(engine, link_args=("-l:it.a",))
    missing = setup_script.Probe(engine, reason="no such header")
    setup_script.fail_for_what_is_required([missing])
    monkeypatch.setenv("DEEPNVME_REQUIRE", engine.library)
    setup_script.fail_for_what_is_required([found])
    with pytest.raises(SystemExit, match=rf"DEEPNVME_REQUIRE={engine.library}.*no such header"):
        setup_script.fail_for_what_is_required([missing])


@pytest.mark.build
@pytest.mark.parametrize("source", ["io/file.cpp", "sys/syscalls.cpp"])
def test_open_and_its_flags_compile_with_checks(source: str, conda: dict[str, str]) -> None:
    """O_DIRECT is known, and every open that may create a file has a mode."""
    command = [conda["CXX"], *shlex.split(CHECKED_FLAGS), "-std=c++20", "-Werror", "-Icsrc"]
    run(*command, "-fsyntax-only", f"csrc/{source}", cwd=ROOT, environment=dict(os.environ))


@pytest.mark.build
def test_headers_may_be_older_than_the_kernel(tmp_path: Path, conda: dict[str, str]) -> None:
    """Ubuntu 22.04 and manylinux have a linux/stat.h without STATX_DIOALIGN."""
    (tmp_path / "linux").mkdir()
    (tmp_path / "linux" / "stat.h").touch()
    command = [conda["CXX"], "-std=c++20", "-Werror", f"-I{tmp_path}", "-Icsrc", "-fsyntax-only"]
    asking = [path for path in (ROOT / "csrc").rglob("*.cpp") if "STATX_" in path.read_text()]
    assert asking
    run(*command, *map(str, asking), cwd=ROOT, environment=dict(os.environ))
