"""Scripts in a process of their own: under strace, a memlock limit, a preloaded shim."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent.parent
HANG_S = 60

# System calls of one file's data, and where each engine meets the kernel, as strace's expressions.
READ_CALLS = "pread64,preadv,preadv2"
WRITE_CALLS = "pwrite64,pwritev,pwritev2"
SUBMIT_CALLS = {
    "io_uring": "io_uring_enter",
    "libaio": "io_submit",
    "posix": f"{READ_CALLS},{WRITE_CALLS}",
}
REAP_CALLS = {**SUBMIT_CALLS, "libaio": "io_getevents,io_pgetevents"}


def run_child(
    script: str,
    *arguments: object,
    wrapper: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    timeout: float = HANG_S,
    options: Sequence[str] = (),
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """Run `script` with `python`, its sys.argv[1:] being `arguments`; a hang is a
    TimeoutExpired, and the end of whatever it has started.
    """
    search = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    inherited = {**os.environ, "PYTHONPATH": search, "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(
        [*wrapper, python, *options, "-c", script, *map(str, arguments)],
        env={**inherited, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            out, err = child.communicate(timeout=timeout)
        except BaseException:
            # A killed strace would leave what it traces running.
            os.killpg(child.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def child_answer(script: str, *arguments: object, **how: Any) -> Any:
    """What a script prints as its one line of JSON; the test fails where it ends with anything but
    0.
    """
    done = run_child(script, *arguments, **how)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def with_strace(log: Path, *expressions: str, path: Path | Sequence[Path] = ()) -> list[str]:
    """The wrapper that runs a child under `strace -f`, with one `-e` for each expression (FX7).

    `log` receives the trace.  With `path`, one or several, only system calls on those files are
    seen, and only they are tampered with.
    """
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    command = ["strace", "-f", "--seccomp-bpf", "-qq", "-v", "-o"]
    can = subprocess.run([*command, os.devnull, "true"], capture_output=True, timeout=HANG_S)
    if can.returncode != 0:
        pytest.skip(f"strace cannot trace here: {can.stderr.decode(errors='replace').strip()}")
    command.append(str(log))
    for one in [path] if isinstance(path, Path) else path:
        command += ["-P", str(one)]
    for expression in expressions:
        command += ["-e", expression]
    return command


def injections(log: Path) -> int:
    """How many system calls strace tampered with."""
    return log.read_text(errors="replace").count("(INJECTED)")


def with_low_memlock(nbytes: int) -> list[str]:
    """The wrapper under which `nbytes` is the most that the child may lock, root or not (FX6)."""
    for tool in ("setpriv", "prlimit"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    return [
        *("prlimit", f"--memlock={nbytes}:{nbytes}"),
        *without_capabilities("ipc_lock"),
    ]


def without_capabilities(*names: str) -> list[str]:
    """The wrapper that takes capabilities away from root; nothing to take from anybody else."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    dropped = ",".join(f"-{name}" for name in names)
    return ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}"]


def preload(directory: Path, source: str) -> dict[str, str]:
    """The environment in which the C functions of `source` stand before libc's (FX8)."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    code, library = directory / "shim.c", directory / "shim.so"
    code.write_text(source)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(code), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    # Behind what is preloaded already: a sanitizer has to be first.
    return {"LD_PRELOAD": " ".join([*os.environ.get("LD_PRELOAD", "").split(), str(library)])}


def errno_name(number: int | None) -> str:
    """EIO and not 5, so that a failed comparison can be read."""
    return errno.errorcode.get(number or 0, str(number))
