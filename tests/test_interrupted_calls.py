"""Signals interrupt system calls, not requests: EINTR is retried (A-07, A-08)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.child import REAP_CALLS, child_answer, injections, with_strace

ROUND_TRIP = """
import json, sys
import torch, aio
from support.buffers import pattern, raw, tensor_of
backend, names = sys.argv[1], sys.argv[2:]
same = []
options = {"block_size": 65536, "queue_depth": 8, "intra_op_parallelism": 2}
with aio.aio_handle(**options, backend=backend) as handle:
    for n in range(6):
        name = names[n % len(names)]
        data = pattern(8 * 65536 + 123, seed=n)
        handle.async_pwrite(tensor_of(data), name, n << 20)
        handle.wait()
        with open(name, "rb") as file:
            file.seek(n << 20)
            same.append(file.read(len(data)) == data)
        back = torch.zeros(len(data), dtype=torch.uint8)
        handle.async_pread(back, name, n << 20)
        same.append(handle.wait() == 1 and raw(back) == data)
    retries = handle.stats()["retries"]
print(json.dumps({"same": same, "retries": retries}))
"""


def test_eintr(disk: Path, tmpfs: Path, tmp_path: Path, backend: str) -> None:
    log, paths = tmp_path / "log", [disk / "file", tmpfs / "file"]
    wrapper = with_strace(
        log,
        f"trace={REAP_CALLS[backend]}",
        f"inject={REAP_CALLS[backend]}:error=EINTR:when=1+2",
        path=paths if backend == "posix" else [],
    )
    answer = child_answer(ROUND_TRIP, backend, *paths, wrapper=wrapper)
    assert injections(log) > 0
    assert answer["same"] == [True] * 12


def test_eintr_from_handing_requests_over(disk: Path, tmp_path: Path, backend: str) -> None:
    if backend != "libaio":
        pytest.skip("only libaio hands requests over in a call of its own")
    log = tmp_path / "log"
    wrapper = with_strace(log, "trace=io_submit", "inject=io_submit:error=EINTR:when=1+2")
    answer = child_answer(ROUND_TRIP, backend, disk / "file", wrapper=wrapper)
    assert injections(log) > 0
    assert answer["same"] == [True] * 12


STORM = """
import ctypes, json, os, signal, sys
import torch, aio
from support.buffers import pattern, raw, tensor_of
backend, names = sys.argv[1], sys.argv[2:]
seen = {"alarm": 0, "direct": 0}
def count(which):
    def handler(number, frame):
        seen[which] += 1
    return handler
signal.signal(signal.SIGALRM, count("alarm"))
signal.signal(signal.SIGUSR1, count("direct"))
libc = ctypes.CDLL(None)
TGKILL = {"x86_64": 234, "aarch64": 131}[os.uname().machine]
data = pattern(8 * 65536)
same = 0
rounds = 0
options = {"block_size": 65536, "queue_depth": 8, "intra_op_parallelism": 2}
with aio.aio_handle(**options, backend=backend) as handle:
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    while rounds < 50 or seen["alarm"] < 50 or seen["direct"] < 50:
        rounds += 1
        name = names[rounds % len(names)]
        handle.async_pwrite(tensor_of(data), name)
        for thread in os.listdir("/proc/self/task"):
            libc.syscall(TGKILL, os.getpid(), int(thread), int(signal.SIGUSR1))
        done = handle.wait()
        back = torch.zeros(len(data), dtype=torch.uint8)
        handle.async_pread(back, name)
        for thread in os.listdir("/proc/self/task"):
            libc.syscall(TGKILL, os.getpid(), int(thread), int(signal.SIGUSR1))
        done += handle.wait()
        same += done == 2 and raw(back) == data
    signal.setitimer(signal.ITIMER_REAL, 0)
print(json.dumps({"same": same, "rounds": rounds}))
"""


def test_signal_storm(disk: Path, tmpfs: Path, backend: str) -> None:
    answer = child_answer(STORM, backend, disk / "file", tmpfs / "file")
    assert answer["rounds"] >= 50
    assert answer["same"] == answer["rounds"], json.dumps(answer)
