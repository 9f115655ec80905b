"""Builds build/faulty/_deepnvme*.so: the shipped objects, and tests/native linked in front of them.

Nothing of the library is compiled again or changed: `--wrap` has the linker send its calls of the
functions in WRAPPED to tests/native/wrapped.cpp.  Run as a script by a test, with the working
directory as the build has it: the root.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SANITIZED = bool(os.environ.get("DEEPNVME_SANITIZE"))
COVERAGE = os.environ.get("DEEPNVME_COVERAGE") == "1"
BUILT = ROOT / "build" / f"faulty{'-sanitized' * SANITIZED}{'-coverage' * COVERAGE}"
WRAPPED = (
    "_ZN8deepnvme2io17make_uring_engineEj",
    "_ZN8deepnvme2io18make_libaio_engineEj",
    "_ZN8deepnvme2io17make_posix_engineEj",
    "_ZN8deepnvme2io18make_inline_engineEj",
    "_ZN8deepnvme6python11bind_handleERN8pybind117module_E",
)
BUILD_HANG_S = 900


def build() -> Path:
    """The directory with the extension, once it is there; AssertionError says why it is not."""
    done = subprocess.run(
        [sys.executable, __file__],
        cwd=ROOT,
        # What a sanitizer wants in front of the tests is not for compilers.
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        capture_output=True,
        text=True,
        timeout=BUILD_HANG_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return BUILT


def shipped_setup() -> Any:
    """setup.py of the library, as a module: it knows flags, engines and what is out of date."""
    specification = importlib.util.spec_from_file_location("deepnvme_setup", ROOT / "setup.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # its dataclasses look it up
    specification.loader.exec_module(module)
    return module


def shipped_objects(project: Any) -> list[str]:
    """Every object of the shipped extension; those that are out of date are compiled first."""
    sources = project.sources()
    objects = [str(project.OBJECTS / Path(source).with_suffix(".o")) for source in sources]
    pairs = list(zip(objects, sources, strict=True))
    if any(not Path(made).exists() or project.must_compile(made, source) for made, source in pairs):
        # Into another directory than the root, whose extension may be in use.
        command = [sys.executable, "setup.py", "--quiet", "build_ext", f"--build-lib={BUILT}/plain"]
        subprocess.run(command, check=True)
    return objects


def main() -> None:
    from setuptools import setup

    BUILT.mkdir(parents=True, exist_ok=True)
    lock = os.open(BUILT / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends: other workers wait
    project = shipped_setup()
    project.use_a_compiler_that_exists()
    objects = shipped_objects(project)
    os.environ["CXXFLAGS"] = " ".join(["-O1", *project.environment_flags("CXXFLAGS")])
    native = Path("tests", "native")
    extension = project.extension()
    extension.sources = sorted(map(str, native.glob("*.cpp")))
    extension.depends += [*objects, *map(str, native.glob("*.h")), "tests/cpp/scripted_engine.h"]
    extension.include_dirs += ["tests/cpp", str(native)]
    extension.extra_objects = objects
    extension.extra_link_args += [f"-Wl,--wrap={symbol}" for symbol in WRAPPED]
    setup(
        ext_modules=[extension],
        cmdclass={"build_ext": project.BuildExtension},
        script_args=[
            *("build_ext", f"--build-lib={BUILT}", f"--build-temp={BUILT.relative_to(ROOT)}"),
        ],
    )


if __name__ == "__main__":
    main()
