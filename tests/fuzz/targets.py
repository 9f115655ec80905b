"""What can be fuzzed: how each target is built, and the command that runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILT = ROOT / "build" / "fuzz"
CORPUS = HERE / "corpus"
PURE = ("plan", "layout")  # little code, whose values and counts are worth following too
CXX_TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.cpp"))

# UBSan's checks of types at run time need symbols that an extension module cannot have.
SANITIZE = "-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=function,vptr"
INSTRUMENTED = {
    "CC": "clang",
    "CXX": "clang++",
    "CXXFLAGS": f"-O1 {SANITIZE} -fno-sanitize-recover=all",
    "DEEPNVME_WITHOUT": "liburing,libaio",  # the posix engine is enough for parsers
}
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "quarantine_size_mb=16:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


class CannotRun(Exception):
    """What is missing."""


@dataclass(frozen=True)
class Target:
    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    directory: Path = ROOT

    def run(self, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (*self.command, *arguments),
            env={**os.environ, **SANITIZER_OPTIONS, **self.environment},
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )


def target(name: str) -> Target:
    """Builds what is out of date. Raises CannotRun where something is missing."""
    _require_clang()
    return _python_target() if name == "python" else _cxx_target(name)


def _quietly(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise CannotRun(f"{' '.join(command[:4])}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


@cache
def _require_clang() -> None:
    BUILT.mkdir(parents=True, exist_ok=True)
    source = BUILT / "probe.cpp"
    source.write_text('extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }\n')
    if shutil.which("clang++") is None:
        raise CannotRun("no clang++: apt install clang libclang-rt-dev")
    try:
        _quietly(
            "clang++", "-fsanitize=fuzzer,address", str(source), "-o", str(source.with_suffix(""))
        )
    except CannotRun as error:
        raise CannotRun(
            f"clang++ without libFuzzer: apt install libclang-rt-dev ({error})"
        ) from None


@cache
def _executables() -> dict[str, str]:
    make = ("make", "-C", str(HERE), "--no-print-directory")
    _quietly(*make, "all")
    return {Path(line).name: line for line in _quietly(*make, "list").split()}


def _cxx_target(name: str) -> Target:
    return Target(name, (_executables()[f"fuzz_{name}"],))


def _python_target() -> Target:
    """atheris, which is preloaded, and the extension as clang instruments it."""
    atheris = BUILT / "atheris"
    if not (atheris / "atheris").is_dir():
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _quietly(*pip, "--no-deps", f"--target={atheris}", f"-r{HERE / 'requirements.txt'}")
        if not (atheris / "atheris").is_dir():
            raise CannotRun("atheris has no release for this Python")
    extension = BUILT / "python"
    objects = (BUILT / "python-objects").relative_to(ROOT)
    _quietly(
        sys.executable, "setup.py", "--quiet", "build_ext",
        f"--build-lib={extension}", f"--build-temp={objects}", **INSTRUMENTED,
    )  # fmt: skip
    program = BUILT / "python_target"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fuzz.python_target "$@"\n')
    program.chmod(0o755)
    return Target(
        "python",
        (str(program),),
        {
            "FUZZ_PROGRAM": str(program),
            "PYTHONPATH": os.pathsep.join(map(str, (extension, ROOT, atheris))),
            "LD_PRELOAD": str(atheris / "asan_with_fuzzer.so"),
            # The interpreter and torch end with memory that they never give back.
            "ASAN_OPTIONS": f"{SANITIZER_OPTIONS['ASAN_OPTIONS']}:detect_leaks=0",
        },
        extension,  # which `python -m` looks at first
    )
