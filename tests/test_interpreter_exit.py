"""The interpreter ends with I/O pending and pinned tensors alive: no word, whole files (C-07)."""

from __future__ import annotations

from pathlib import Path

from support.buffers import pattern
from support.child import run_child

ROUNDS = 7  # for each engine
PENDING = 64
NBYTES = 100_001

# Importing torch takes most of a second: the process forks, and each child ends as a script does.
SCRIPT = """
import sys, threading
import torch, aio
from support.buffers import fill, locked, pattern
from support.many_exits import number_of_child
backend, folder, rounds, pending, nbytes = sys.argv[1:3] + list(map(int, sys.argv[3:]))

number = number_of_child(rounds, at_once=True)
handle = aio.aio_handle(backend=backend, intra_op_parallelism=2)
pinned = [locked(handle, nbytes) for _ in range(4)]
cycle = [locked(handle, 5000), aio.aio_handle(backend=backend)]
cycle.append(cycle)

def daemon():
    mine = locked(handle, 5000)
    own = aio.aio_handle(backend=backend)
    started.set()
    while True:
        own.sync_pwrite(mine, f"{folder}/daemon")

started = threading.Event()
threading.Thread(target=daemon, daemon=True).start()
started.wait()
for index in range(pending):
    data = pattern(nbytes, 1000 * number + index)
    if index < len(pinned):
        fill(pinned[index], data)
        handle.async_pwrite(pinned[index], f"{folder}/{number}.{index}")
    else:
        handle.async_pwrite(data, f"{folder}/{number}.{index}")
future = handle.submit_pwrite(pattern(nbytes), f"{folder}/{number}.future")
future.add_done_callback(lambda future: None)
"""


def test_files_are_whole(disk: Path, backend: str) -> None:
    done = run_child(SCRIPT, backend, disk, ROUNDS, PENDING, NBYTES)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for number in range(ROUNDS):
        for index in range(PENDING):
            expected = pattern(NBYTES, 1000 * number + index)
            assert (disk / f"{number}.{index}").read_bytes() == expected
        assert (disk / f"{number}.future").read_bytes() == pattern(NBYTES)


def test_no_room_to_be_told_of_the_exit() -> None:
    """Python has 32 places for functions that are called at the end; the import says so, before a
    handle could be left open then.
    """
    script = """
import ctypes
harmless = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p)
while ctypes.pythonapi.Py_AtExit(harmless) == 0:
    pass
try:
    import _deepnvme
except ImportError as error:
    print(error)
"""
    done = run_child(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert "exit functions (Py_AtExit) is full; import aio earlier" in done.stdout


def test_sys_exit_while_another_thread_waits(disk: Path, backend: str) -> None:
    script = """
import sys, threading
import aio
handle = aio.aio_handle(backend=sys.argv[1])
started = threading.Event()

def wait():
    started.set()
    try:
        while True:
            handle.async_pwrite(bytes(1 << 20), sys.argv[2])
            handle.wait()
    except RuntimeError:  # exit has closed it
        threading.Event().wait()

threading.Thread(target=wait, daemon=True).start()
started.wait()
sys.exit(0)
"""
    done = run_child(script, backend, disk / "file")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
