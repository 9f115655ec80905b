"""Failing system calls of a live process: retried, done without, or reported (A-08, A-10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.child import READ_CALLS, WRITE_CALLS, child_answer, injections, with_strace

# argv: engine, file. Says what each step gave: "ok", or the errno of the AioError. The buffers are
# checked after every step, whatever it said.
SCRIPT = """
import errno, json, os, sys
import torch, aio
from support.buffers import locked, pattern, raw, tensor_of
backend, path = sys.argv[1:]
data = pattern(600_001)
source, target = tensor_of(data), torch.zeros(len(data), dtype=torch.uint8)
answer = {"wrong": 0}

def step(name, call, expected):
    try:
        call()
    except aio.AioError as error:
        answer[name] = errno.errorcode[error.errno]
        answer["wrong"] += error.filename != path or error.nbytes_done > len(data)
    except RuntimeError as error:
        answer[name] = "RuntimeError"
    else:
        answer[name] = "ok"
        answer["wrong"] += not expected()

def write():
    handle.async_pwrite(source, path)
    handle.wait()

def read():
    target.zero_()
    handle.async_pread(target, path)
    handle.wait()

def locked_read():
    pinned = locked(handle, len(data))
    handle.sync_pread(pinned, path)
    target.copy_(pinned)

with aio.aio_handle(backend=backend, block_size=65536, intra_op_parallelism=2) as handle:
    step("write", write, lambda: open(path, "rb").read() == data)
    step("read", read, lambda: raw(target) == data)
    step("locked", locked_read, lambda: raw(target) == data)
    step("sync", lambda: handle.fsync(path), lambda: True)
    answer["in flight"] = handle.stats()["in_flight"]
answer["source"] = raw(source) == data
print(json.dumps(answer))
"""
CALM = {"wrong": 0, "in flight": 0, "source": True}
FINE = {"write": "ok", "read": "ok", "locked": "ok", "sync": "ok"}


def run(log: Path, backend: str, path: Path, calls: str, how: str, only: bool = True) -> Any:
    wrapper = with_strace(log, f"trace={calls}", f"inject={calls}:{how}", path=path if only else ())
    answer = child_answer(SCRIPT, backend, path, wrapper=wrapper)
    if injections(log) == 0:
        pytest.skip(f"this engine makes none of these calls here: {calls}")
    assert {key: answer[key] for key in CALM} == CALM
    return {key: answer[key] for key in FINE}


# What the library can do without: system call, errno.
OPTIONAL = [
    ("fallocate", "EOPNOTSUPP"),
    ("fallocate", "EINTR:when=1+2"),
    # Reports an error, and has closed all the same: not tried again, nothing lost.
    ("close", "EINTR"),
]


@pytest.mark.parametrize(("call", "error"), OPTIONAL)
def test_done_without(disk: Path, tmp_path: Path, call: str, error: str) -> None:
    path = disk / "file"
    assert run(tmp_path / "log", "posix", path, call, f"error={error}") == FINE


# What is reported as it is: system call, errno, what comes of each step.
REPORTED = [
    ("fallocate", "ENOSPC", {"write": "ENOSPC", "read": "ENODATA", "locked": "ENODATA"}),
    ("openat", "ENFILE", dict.fromkeys(FINE, "ENFILE")),
    ("openat", "EACCES", dict.fromkeys(FINE, "EACCES")),
    ("fsync", "EIO", {"sync": "EIO"}),
]


@pytest.mark.parametrize(("call", "error", "steps"), REPORTED)
def test_reported(disk: Path, tmp_path: Path, call: str, error: str, steps: dict[str, str]) -> None:
    path = disk / "file"
    assert run(tmp_path / "log", "posix", path, call, f"error={error}") == {**FINE, **steps}


RETRIED = {
    "io_uring": ("io_uring_enter", ["EAGAIN", "EBUSY", "EINTR"]),
    "libaio": ("io_submit,io_getevents", ["EAGAIN", "EINTR"]),
    "posix": (f"{READ_CALLS},{WRITE_CALLS}", ["EAGAIN", "EINTR"]),
}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_retried(disk: Path, tmp_path: Path, backend: str, number: int) -> None:
    """Every second call of an engine is refused."""
    calls, errors = RETRIED[backend]
    if number >= len(errors):
        pytest.skip(f"{backend} knows {len(errors)} refusals")
    how = f"error={errors[number]}:when=1+2"
    only = backend == "posix"
    assert run(tmp_path / "log", backend, disk / "file", calls, how, only) == FINE


def test_no_memory_can_be_locked(disk: Path, tmp_path: Path) -> None:
    """mlock refused: plain I/O goes on; only who asks for locked memory hears of it."""
    script = """
import json, sys
import torch, aio
from support.buffers import locked, pattern, raw, tensor_of
backend, path = sys.argv[1:]
backend = backend if backend in aio.available_backends() else "posix"
data = pattern(300_001)
room = torch.empty(len(data) + 1, dtype=torch.uint8)
handle = aio.aio_handle(backend=backend)
try:
    locked(handle, 5000)
    said = ""
except aio.PinError as error:
    said = type(error).__name__
handle.sync_pwrite(tensor_of(data), path)
handle.sync_pread(room[1:], path)
print(json.dumps([said, raw(room[1:]) == data]))
"""
    wrapper = with_strace(tmp_path / "log", "trace=mlock,mlock2", "inject=mlock,mlock2:error=EPERM")
    answer = child_answer(script, "libaio", disk / "file", wrapper=wrapper)
    assert injections(tmp_path / "log") > 0
    assert answer == ["PinError", True]
