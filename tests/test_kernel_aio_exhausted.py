"""No room for another context of kernel AIO: another engine is taken, or the limit named (C-12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aio
from support import seccomp
from support.child import child_answer
from support.counters import until

pytestmark = pytest.mark.alone

PRELUDE = """
import ctypes, errno, json, sys
from support import seccomp
from support.counters import counters
seccomp.forbid(seccomp.IO_URING)
import aio
from support.buffers import pattern

def attempt(path):
    "Which engine is chosen, and what libaio says when it is named."
    aio.aio_handle(backend="posix").close()
    answer = {}
    with counters():
        with aio.aio_handle(intra_op_parallelism=3) as handle:
            answer["chosen"] = handle.backend
            data = pattern(300_001)
            handle.sync_pwrite(data, path)
            back = bytearray(len(data))
            handle.async_pread(back, path)
            answer["moved"] = handle.wait() == 1 and back == data
        try:
            aio.aio_handle(backend="libaio", intra_op_parallelism=3).close()
            answer["named"] = "works"
        except RuntimeError as error:
            answer["named"] = str(error)
    return answer
"""

FORBIDDEN = """
seccomp.forbid([seccomp.IO_SETUP], errno.EAGAIN)
print(json.dumps(attempt(sys.argv[1])))
"""

# The budget is the machine's: it is held for the moment of one attempt, and a killed process gives
# it back.
EXHAUSTED = """
def number(name):
    return int(open(f"/proc/sys/fs/{name}").read())

libc = ctypes.CDLL(None, use_errno=True)
contexts, size = [], number("aio-max-nr")
while size >= 64 and len(contexts) < 100:
    context = ctypes.c_ulong(0)
    if libc.syscall(seccomp.IO_SETUP, size, ctypes.byref(context)) == 0:
        contexts.append(context)
    else:
        size //= 2
answer = attempt(sys.argv[1])
for context in contexts:
    libc.syscall(seccomp.IO_SETUP + 1, context)
after = aio.aio_handle(backend="libaio")
after.close()
print(json.dumps(answer))
"""


@pytest.fixture(autouse=True)
def _needs_libaio() -> None:
    if "libaio" not in aio.available_backends():
        pytest.skip("libaio cannot run here even with room")
    if seccomp.IO_SETUP is None:
        pytest.skip("the number of io_setup on this architecture is not known to the test")


def check(answer: Any) -> None:
    assert answer["chosen"] == "posix"
    assert answer["moved"]
    assert "fs.aio-max-nr" in answer["named"]
    assert "libaio" in answer["named"]


def test_io_setup_says_eagain(disk: Path) -> None:
    check(child_answer(PRELUDE + FORBIDDEN, disk / "file"))


def test_the_machine_is_out_of_contexts(disk: Path) -> None:
    used = Path("/proc/sys/fs/aio-nr")
    if int(used.read_text()) != 0:
        pytest.skip("somebody on this machine uses kernel AIO (fs.aio-nr is not 0)")
    answer = child_answer(PRELUDE + EXHAUSTED, disk / "file")
    check(answer)


# Contexts of 16384 transfers, and many that are as large as they usually are.
@pytest.mark.parametrize(("most", "depth", "parallelism"), [(20, 16384, 1), (200, 128, 8)])
def test_more_handles_than_the_machine_has_room_for(
    most: int, depth: int, parallelism: int
) -> None:
    """As many as there is room for, then an error; all is given back."""
    script = """
import json, sys
import aio
most, depth, parallelism = map(int, sys.argv[1:])
handles, refused = [], ""
for _ in range(most):
    try:
        handles.append(
            aio.aio_handle(queue_depth=depth, intra_op_parallelism=parallelism, backend="libaio")
        )
    except RuntimeError as error:
        refused = str(error)
        break
count = len(handles)
for handle in handles:
    handle.close()
print(json.dumps([count, refused]))
"""
    used = Path("/proc/sys/fs/aio-nr")
    before = int(used.read_text())
    if before != 0:
        pytest.skip("somebody on this machine uses kernel AIO (fs.aio-nr is not 0)")
    count, refused = child_answer(script, most, depth, parallelism)
    if int(Path("/proc/sys/fs/aio-max-nr").read_text()) <= most * depth * parallelism:
        assert 1 <= count < most
        assert "fs.aio-max-nr" in refused
    until(lambda: int(used.read_text()) <= before, "contexts given back")
