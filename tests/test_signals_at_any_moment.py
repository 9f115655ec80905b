"""SIGINT at any moment ends a process as always; SIGKILL leaves nothing half under its name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import aio
from support.buffers import pattern
from support.child import TESTS, child_answer
from support.fuse import fuse_mount

NBYTES = 3_000_001

# A warm process forks; each child is interrupted somewhere in its requests, and goes through the
# whole exit of an interpreter. argv: engine, folder, runs.
INTERRUPTED = """
import gc, json, os, signal, sys
import torch, aio
from support.buffers import locked, pattern
backend, folder, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
gc.freeze()
parent = os.getpid()
data = pattern(3_000_001)
ways = []
for number in range(runs):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        break
    os.close(writing)
    os.read(reading, 1)
    # A moment that differs from child to child: some system calls later.
    for _ in range(number * 300):
        os.getppid()
    os.kill(pid, signal.SIGINT)
    _, status = os.waitpid(pid, 0)
    os.close(reading)
    ways.append(os.waitstatus_to_exitcode(status))
if os.getpid() == parent:
    print(json.dumps(ways))
    sys.exit(0)

os.dup2(os.open(f"{folder}/stderr.{number}", os.O_CREAT | os.O_WRONLY), 2)
handle = aio.aio_handle(backend=backend, intra_op_parallelism=2, block_size=65536)
pinned = locked(handle, len(data))
os.write(writing, b"x")
while True:
    handle.async_pwrite(data, f"{folder}/{number}.a")
    future = handle.submit_pwrite(data, f"{folder}/{number}.b")
    handle.sync_pwrite(pinned, f"{folder}/{number}.c")
    handle.wait()
    future.result()
    handle.pread_many([(pinned, f"{folder}/{number}.a")])
"""


def test_interrupted(tmpfs: Path, backend: str) -> None:
    runs = 8
    ways = child_answer(INTERRUPTED, backend, tmpfs, runs)
    assert ways == [-signal.SIGINT] * runs  # as every Python program ends
    for number in range(runs):
        said = (tmpfs / f"stderr.{number}").read_text().splitlines()
        assert said[0] == "Traceback (most recent call last):"
        assert said[-1].startswith("KeyboardInterrupt")
        assert not any("terminate" in line or "Fatal" in line for line in said)
        for path in tmpfs.glob(f"{number}.[ab]"):  # what was started was carried out
            assert path.read_bytes() == pattern(NBYTES)


def test_interrupted_while_the_drive_does_not_answer(tmp_path: Path, backend: str) -> None:
    """wait() gives up at once; the requests go on, and can be waited for once the drive does."""
    script = """
import json, os, signal, sys, threading
import aio
backend, folder = sys.argv[1:]
handle = aio.aio_handle(backend=backend)
answer = []
handle.async_pwrite(b"x" * 5000, f"{folder}/held-file")
future = handle.submit_pwrite(b"y" * 5000, f"{folder}/held-other")
for call in (handle.wait, future.result, handle.wait):
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        call()
        answer.append("returned")
    except KeyboardInterrupt:
        answer.append("interrupted")
    timer.join()
answer.append(future.done())
open(f"{folder}/release", "w").close()
answer += [handle.wait(), future.result()]
print(json.dumps(answer))
"""
    with fuse_mount(tmp_path / "fuse") as drive:
        answer = child_answer(script, backend, drive.path)
        assert answer == [*["interrupted"] * 3, False, 1, 5000]
        assert (drive.path / "held-file").read_bytes() == b"x" * 5000


WRITER = """
import os, sys
import torch, aio
backend, folder = sys.argv[1:]
handle = aio.aio_handle(backend=backend, block_size=65536)
number = 0
while True:
    number += 1
    data = torch.full((3_000_001,), number % 251, dtype=torch.uint8)
    handle.async_pwrite(data, f"{folder}/new")
    handle.wait()
    handle.fsync(f"{folder}/new")
    os.replace(f"{folder}/new", f"{folder}/{number % 4}")
    print(number, flush=True)
"""


def test_killed_writer(disk: Path, backend: str) -> None:
    """Only what wait() has returned for carries its final name, and all of it is there."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    for rounds in (1, 5):
        command = [sys.executable, "-c", WRITER, backend, str(disk)]
        writer = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert writer.stdout is not None
            said = [int(writer.stdout.readline()) for _ in range(rounds)]
        finally:
            writer.kill()
            writer.wait(60)
        said += [int(line) for line in writer.stdout.read().split()]
        writer.stdout.close()
        for path in disk.glob("[0-3]"):
            content = path.read_bytes()
            assert len(content) == NBYTES
            assert content == content[:1] * NBYTES
        newest = (disk / f"{said[-1] % 4}").read_bytes()
        assert newest[0] in (said[-1] % 251, (said[-1] + 4) % 251)
    # The next run finds the half-written file, and works.
    with aio.aio_handle(backend=backend) as handle:
        handle.sync_pwrite(pattern(NBYTES + 5), disk / "new")
    assert (disk / "new").read_bytes() == pattern(NBYTES + 5)
