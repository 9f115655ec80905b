"""A process may end at any moment: silent, exit status 0, files complete or absent (C-07)."""

from __future__ import annotations

from pathlib import Path

from support.buffers import pattern
from support.child import run_child
from support.sanitizers import examples

NBYTES = 150_001
FILES = 12
RUNS = examples(48)  # for each engine

# Importing torch takes a second: a warm process forks, and every child goes through the whole exit
# of an interpreter, at a moment that its number decides. argv: engine, folder, runs, bytes, files.
SCRIPT = """
import atexit, random, sys, threading
import torch, aio
from support.buffers import fill, locked, pattern
from support.many_exits import number_of_child
backend, *folders, runs, nbytes, files = sys.argv[1:4] + list(map(int, sys.argv[4:]))
number = number_of_child(runs)

# Every other child on the drive, the others in memory.
source = f"{folders[0]}/source"
folder = folders[number % 2]
draw = random.Random(number)
moment = draw.randrange(3 * files + 6)  # how many steps are taken before the end
how = draw.choice(["exit", "fall off", "thread exits", "atexit", "exception"])

def step():
    global moment
    moment -= 1
    if moment < 0:
        finish()

def finish():
    if how == "exit":
        sys.exit(0)
    if how == "atexit" and handle is not None:
        atexit.register(lambda: handle.async_pwrite(pattern(nbytes), f"{folder}/{number}.late"))
    raise EOFError

def work():
    global handle, pinned
    step()
    handle = aio.aio_handle(backend=backend, intra_op_parallelism=2, block_size=65536)
    step()
    pinned = locked(handle, nbytes)
    step()
    fill(pinned, pattern(nbytes, 0))
    handle.async_pwrite(pinned, f"{folder}/{number}.0")
    step()
    futures = []
    for index in range(1, files):
        handle.async_pwrite(pattern(nbytes, index), f"{folder}/{number}.{index}")
        step()
        futures.append(handle.submit_pread(locked(handle, nbytes), source))
        step()
        futures[-1].add_done_callback(lambda future: None)
        step()
    handle.wait()
    step()
    futures[0].result()
    step()
    handle.close()
    raise EOFError

def daemon():
    own = aio.aio_handle(backend=backend)
    while True:
        own.sync_pread(bytearray(1000), source)

handle = pinned = None
if draw.random() < 0.3:
    threading.Thread(target=daemon, daemon=True).start()
try:
    if how == "thread exits":
        def target():
            try:
                work()
            except EOFError:
                pass
        threading.Thread(target=target).start()
    else:
        work()
except EOFError:
    pass
"""


def check(directory: Path) -> None:
    whole = 0
    for path in directory.iterdir():
        if path.name != "source":
            number, _, index = path.name.partition(".")
            assert int(number) < RUNS
            assert path.read_bytes() == pattern(NBYTES, 0 if index == "late" else int(index))
            whole += 1
    assert whole > RUNS // 2


def test_in_forked_interpreters(disk: Path, tmpfs: Path, backend: str) -> None:
    """Each child ends at another moment, half of them with files on a drive."""
    (disk / "source").write_bytes(pattern(NBYTES))
    done = run_child(SCRIPT, backend, disk, tmpfs, RUNS, NBYTES, FILES, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for directory in (disk, tmpfs):
        check(directory)


DAEMONS = """
import sys, threading
import torch, aio
from _deepnvme import pin
from support.many_exits import number_of_child
backend, path, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
number = number_of_child(runs)

def for_ever(call):
    def loop():
        while True:
            call()
            calls[call] = calls.get(call, 0) + 1
    threading.Thread(target=loop, daemon=True).start()

def asynchronous():
    handle.async_pread(bytearray(1000), path)
    handle.wait()

calls = {}
handle = aio.aio_handle(backend=backend, intra_op_parallelism=2)
ways = [
    lambda: handle.sync_pread(bytearray(1000), path),
    lambda: handle.submit_pread(bytearray(100_000), path).result(),
    lambda: handle.pread_many([(bytearray(1000), path)] * 3),
    # The native half of new_cpu_locked_tensor: the other, torch, aborts so by itself.
    lambda: pin.allocate_dlpack(1000, "test"),
    asynchronous,
]
for way in ways:
    for_ever(way)
while len(calls) < len(ways) or sum(calls.values()) < 20 * number:
    pass
"""


def test_daemon_threads_inside_calls(tmpfs: Path, backend: str) -> None:
    """They never return to Python; the process ends around them, without a word."""
    (tmpfs / "file").write_bytes(pattern(NBYTES))
    done = run_child(DAEMONS, backend, tmpfs / "file", examples(12))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_in_fresh_interpreters(tmpfs: Path) -> None:
    """Nothing inherited: the import itself, and the order in which modules go."""
    script = """
import sys
import torch, aio
from support.buffers import locked, pattern
number, folder, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
handle = aio.aio_handle(intra_op_parallelism=2)
torch.kept = aio.kept = sys.kept = [handle, locked(handle, 5000)]
for index in range(20):
    handle.async_pwrite(pattern(150_001, index), f"{folder}/{number}.{index}")
future = handle.submit_pread(bytearray(150_001), f"{folder}/{number}.0")
if how == "no references":
    del handle, torch.kept, aio.kept, sys.kept
if how == "modules gone":
    for name in [name for name in sys.modules if name.startswith(("aio", "_deepnvme", "torch"))]:
        del sys.modules[name]
    del torch, aio
if how == "exit in a callback":
    future.add_done_callback(lambda future: sys.exit)
"""
    ways = ["plain", "no references", "modules gone", "exit in a callback"]
    for number in range(len(ways)):
        (tmpfs / f"{number}.0").write_bytes(pattern(150_001))
        done = run_child(script, number, tmpfs, ways[number])
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), ways[number]
        for index in range(20):
            assert (tmpfs / f"{number}.{index}").read_bytes() == pattern(150_001, index)
