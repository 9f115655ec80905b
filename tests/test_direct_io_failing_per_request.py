"""O_DIRECT that fails at the transfer: the page cache takes over once, bytes right (F-02)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support import statx
from support.child import SUBMIT_CALLS, child_answer, injections, preload, run_child, with_strace
from support.files import direct_alignment

# A file system that promises to take memory at any address and whose drive does not: real EINVALs,
# in the completion.
LYING_STATX = statx.alignment_of_memory(1)

ROUND_TRIP = """
import json, sys
import aio
from support.buffers import fill, pattern, raw, shifted
backend, name, nbytes, depth = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
same = []
with aio.aio_handle(block_size=16384, queue_depth=depth, backend=backend) as handle:
    tensor = shifted(nbytes, 64)
    for n in range(2):
        data = pattern(nbytes, seed=n)
        fill(tensor, data)
        same.append(handle.sync_pwrite(tensor, name) == 1)
        same.append(open(name, "rb").read() == data)
        tensor.zero_()
        same.append(handle.sync_pread(tensor, name) == 1)
        same.append(raw(tensor) == data)
    stats = handle.stats()
print(json.dumps({"same": same, "stats": stats}))
"""

NBYTES = 4 << 20
BLOCKS = NBYTES // 16384
DEPTH = 8


def check(answer: Any) -> None:
    stats = answer["stats"]
    assert answer["same"] == [True] * 8
    assert stats["failed"] == 0
    # Four requests, each on the file opened anew: none is refused more than once.
    assert 1 <= stats["direct_refused"] <= 4
    for way in ("read", "write"):
        assert sum(stats["bytes"][way].values()) == 2 * NBYTES
        assert stats["bytes"][way]["buffered"] > NBYTES


def test_the_drive_refuses_the_memory(disk: Path, tmp_path: Path, backend: str) -> None:
    path = disk / "file"
    path.touch()
    memory, _ = direct_alignment(path)
    if memory <= 64:
        pytest.skip(f"this drive takes memory aligned to {memory}: nothing to refuse")
    environment = preload(tmp_path, LYING_STATX)
    check(child_answer(ROUND_TRIP, backend, path, NBYTES, DEPTH, environment=environment))


def test_few_calls_are_spent_on_it(disk: Path, tmp_path: Path) -> None:
    """Each block in flight may fail once; none is tried again and again, and no later one is tried
    at all.
    """
    path, log = disk / "file", tmp_path / "log"
    path.touch()
    memory, _ = direct_alignment(path)
    if memory <= 64:
        pytest.skip(f"this drive takes memory aligned to {memory}: nothing to refuse")
    environment = preload(tmp_path, LYING_STATX)
    wrapper = [*with_strace(log, "trace=pread64,pwrite64", path=path), "-E", ""]
    wrapper[-1] = f"LD_PRELOAD={environment['LD_PRELOAD']}"
    check(child_answer(ROUND_TRIP, "posix", path, NBYTES, DEPTH, wrapper=wrapper))
    lines = log.read_text(errors="replace").splitlines()
    calls = [line for line in lines if "<unfinished" not in line]  # its result is in a later line
    refused = sum("EINVAL" in call for call in calls)
    assert 1 <= refused <= 4 * DEPTH
    assert len(calls) <= 4 * BLOCKS + refused + 64


def test_the_first_transfer_only(disk: Path, tmp_path: Path) -> None:
    # strace counts by thread, and a queue of one has one.
    path, log = disk / "file", tmp_path / "log"
    calls = SUBMIT_CALLS["posix"]
    wrapper = with_strace(log, f"trace={calls}", f"inject={calls}:error=EINVAL:when=1", path=path)
    answer = child_answer(ROUND_TRIP, "posix", path, NBYTES, 1, wrapper=wrapper)
    assert injections(log) >= 1
    assert answer["same"] == [True] * 8
    assert answer["stats"]["failed"] == 0


def test_failing_for_ever_is_an_error(disk: Path, tmp_path: Path, backend: str) -> None:
    """Where the page cache fails too there is nothing left to try: an error, after a bounded number
    of calls.
    """
    if backend == "io_uring":
        pytest.skip("strace cannot make the requests of a ring fail")
    path, log = disk / "file", tmp_path / "log"
    calls = SUBMIT_CALLS[backend]
    # The first io_submit of a thread is the engine's own, while it is made.
    when = "2+" if backend == "libaio" else "1+"
    wrapper = with_strace(
        log,
        f"trace={calls}",
        f"inject={calls}:error=EINVAL:when={when}",
        path=[path] if backend == "posix" else [],
    )
    done = run_child(ROUND_TRIP, backend, path, NBYTES, DEPTH, wrapper=wrapper)
    assert done.returncode == 1
    assert "AioError" in done.stderr
    assert "Invalid argument" in done.stderr
    assert 1 <= injections(log) <= 4 * BLOCKS
