"""A kernel that lacks a system call or a flag is used without it; bytes are right (F-05)."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

import aio
from support import seccomp
from support.child import child_answer, injections, with_strace

SCRIPT = """
import errno, json, sys
from support import seccomp
path, backend, numbers, code = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
if numbers:
    seccomp.forbid(numbers, getattr(errno, code))
import torch, aio
from support.buffers import locked, pattern, raw, shifted
data = pattern(300_001)
answer = []
with aio.aio_handle(backend=backend, block_size=65536) as handle:
    for memory in (locked(handle, len(data)), shifted(len(data), 64)):
        memory.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        handle.async_pwrite(memory, path)
        handle.wait()
        memory.zero_()
        handle.sync_pread(memory, path)
        answer.append(raw(memory) == data)
    answer.append(open(path, "rb").read() == data)
    handle.fsync(path)
print(json.dumps(answer))
"""
MADVISE = {"x86_64": 28, "aarch64": 233}.get(platform.machine())
CALLS = {
    "x86_64": {"fallocate": 285, "fadvise64": 221, "mlock2": 325, "preadv2": 327},
    "aarch64": {"fallocate": 47, "fadvise64": 223, "mlock2": 284, "preadv2": 286},
}.get(platform.machine(), {})


@pytest.mark.parametrize("code", ["ENOSYS", "EPERM"])
def test_system_calls_that_came_late(disk: Path, code: str) -> None:
    """All of them at once; EPERM is how old container runtimes say ENOSYS."""
    if not CALLS:
        pytest.skip("the numbers of this architecture are not known to the test")
    numbers = list(CALLS.values())
    for backend in aio.available_backends():
        assert child_answer(SCRIPT, disk / "file", backend, numbers, code) == [True] * 3, backend


def test_advice_that_is_not_known(disk: Path) -> None:
    """Huge pages, populating: EINVAL, and the memory is locked all the same."""
    if MADVISE is None:
        pytest.skip("the numbers of this architecture are not known to the test")
    assert child_answer(SCRIPT, disk / "file", "auto", [MADVISE], "EINVAL") == [True] * 3


def test_flags_of_the_ring(disk: Path, tmp_path: Path) -> None:
    """io_uring_setup refuses the newest flags with EINVAL: fewer are asked."""
    if "io_uring" not in aio.available_backends():
        pytest.skip("io_uring cannot run here")
    for refusals in ("1", "1..2"):
        log = tmp_path / f"log {refusals}"
        wrapper = with_strace(
            log, "trace=io_uring_setup", f"inject=io_uring_setup:error=EINVAL:when={refusals}"
        )
        answer = child_answer(SCRIPT, disk / "file", "io_uring", [], "", wrapper=wrapper)
        assert answer == [True] * 3
        assert injections(log) > 0


def test_no_registered_buffers_and_no_kernel_aio(disk: Path) -> None:
    numbers = [*seccomp.IO_URING, *([seccomp.IO_SETUP] if seccomp.IO_SETUP is not None else [])]
    assert child_answer(SCRIPT, disk / "file", "auto", numbers, "ENOSYS") == [True] * 3
