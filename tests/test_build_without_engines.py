"""Guards the build without liburing and libaio: it works, and says what is missing and why."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]

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
    # Nothing here depends on speed, and unoptimised code compiles in half the time.
    return environment | {"CPLUS_INCLUDE_PATH": str(hidden), "CXXFLAGS": "-O0"}


def run(*command: str, cwd: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.build
def test_extension_works_without_both_libraries(tmp_path: Path, no_headers: dict[str, str]) -> None:
    environment = no_headers | {"DEEPNVME_WITHOUT": "liburing,libaio"}
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
    specification = importlib.util.spec_from_file_location("deepnvme_setup", ROOT / "setup.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # Its dataclasses look their own module up.
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


@pytest.mark.build
@pytest.mark.parametrize("library", ["liburing", "libaio"])
def test_missing_header_is_the_reason(
    library: str,
    setup_script: ModuleType,
    no_headers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DEEPNVME_WITHOUT", raising=False)
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", no_headers["CPLUS_INCLUDE_PATH"])
    engine = next(engine for engine in setup_script.ENGINES if engine.library == library)
    name, value = setup_script.probe(engine).define
    assert name == f"DEEPNVME_{library.upper()}_REASON"
    assert f"{library}.h is hidden by a test" in value
