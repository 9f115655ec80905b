"""Under gdb and strace requests complete, memory stays flat, and nothing is lost (C-16)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import aio
from support.child import REAP_CALLS, SUBMIT_CALLS, child_answer, run_child, with_strace
from support.files import need_memory

SCRIPT = """
import json, sys
import torch, aio
from support.buffers import locked, pattern, raw
from support.counters import status_kb
backend, path = sys.argv[1:]
data = pattern(8 << 20)
source = torch.frombuffer(bytearray(data), dtype=torch.uint8)
target = torch.zeros(len(data), dtype=torch.uint8)
with aio.aio_handle(backend=backend, block_size=65536, intra_op_parallelism=2) as handle:
    def round():
        handle.async_pwrite(source, path)
        counted = handle.wait()
        handle.async_pread(target, path)
        return counted + handle.wait()
    counted = [round()]
    before = status_kb("VmHWM")
    counted += [round() for _ in range(5)]
    grown = status_kb("VmHWM") - before
print(json.dumps([counted, raw(target) == data, grown < (4 << 10)]))
"""
RIGHT = [[2] * 6, True, True]


def test_strace(disk: Path, tmp_path: Path, backend: str) -> None:
    """Every system call of every thread stops the process twice."""
    wrapper = [part for part in with_strace(tmp_path / "log") if part != "--seccomp-bpf"]
    assert child_answer(SCRIPT, backend, disk / "file", wrapper=wrapper) == RIGHT


ONE_LARGE = """
import json, sys
import torch, aio
from support.counters import status_kb
backend, path, nbytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(path, "wb") as file:
    file.truncate(nbytes)
target = torch.full((nbytes,), 0xEE, dtype=torch.uint8)
with aio.aio_handle(backend=backend) as handle:
    handle.sync_pread(target[: 64 << 20], path)
    before = status_kb("VmHWM")
    handle.async_pread(target, path)
    counted = handle.wait()
    grown = status_kb("VmHWM") - before
print(json.dumps([counted, bool((target[::512] == 0).all()), grown < (8 << 10)]))
"""


def test_one_large_request(disk: Path, tmp_path: Path, backend: str) -> None:
    """A request of 512 MiB costs no memory of its own, however slow its calls are made."""
    nbytes = 512 << 20
    need_memory(2 * nbytes)
    calls = {*REAP_CALLS.values(), *SUBMIT_CALLS.values()}
    wrapper = with_strace(tmp_path / "log", f"trace={','.join(calls)}")
    answer = child_answer(ONE_LARGE, backend, disk / "file", nbytes, wrapper=wrapper)
    assert answer == [1, True, True]


@pytest.mark.not_sanitized("gdb and the sanitizers wait for each other")
def test_gdb(disk: Path) -> None:
    """Threads are reported, signals pass through the debugger, and the exit is clean."""
    if shutil.which("gdb") is None:
        pytest.skip("gdb is not installed")
    wrapper = ["gdb", "-q", "-nx", "-batch", "-return-child-result"]
    wrapper += ["-iex", "set debuginfod enabled off", "-iex", "set auto-load off"]
    wrapper += ["-ex", "handle SIGINT nostop noprint pass", "-ex", "run", "--args"]
    can = subprocess.run([*wrapper, "true"], capture_output=True, timeout=60, check=False)
    if can.returncode != 0:
        pytest.skip(f"gdb cannot run a program here: {can.stderr.decode(errors='replace')}")
    script = SCRIPT.replace("print(json", "open(path + '.answer', 'w').write(json")
    done = run_child(
        script, aio.available_backends()[0], disk / "file", wrapper=wrapper, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((disk / "file.answer").read_text()) == RIGHT
