"""At the memlock limit: an error with numbers, nothing left over, and I/O goes on (E-17, E-24)."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import pytest

from support.buffers import pattern
from support.child import child_answer, with_low_memlock, without_capabilities

MIB = 1 << 20
LIMIT = 8 * MIB

PRELUDE = """
import gc, json, os, resource, sys
import torch, _deepnvme, aio
from support.buffers import fill, locked, pattern, raw
from support.counters import status_kb
MIB = 1 << 20
pins = aio.pin_handle()

def attempt(nbytes):
    "The tensor, or what the error says."
    try:
        return locked(pins, nbytes)
    except aio.PinError as error:
        said = str(error)
        return {
            "memory error": isinstance(error, MemoryError),
            "nbytes": error.nbytes,
            "locked": error.locked,
            "limit": error.limit,
            "says": [str(number) in said for number in (error.nbytes, error.locked, error.limit)],
            "remedy": "memlock" in said.lower() or "ulimit" in said,
        }

def vmlck():
    return status_kb("VmLck") * 1024
"""


def refusal(nbytes: int, locked: int, limit: int = LIMIT) -> dict[str, object]:
    return {
        "memory error": True,
        "nbytes": nbytes,
        "locked": locked,
        "limit": limit,
        "says": [True, True, True],
        "remedy": True,
    }


SEQUENCE = """
start = vmlck()
first = attempt(4 * MIB)
held = vmlck()
answer = {"start": start, "held": held, "7 beside 4": attempt(7 * MIB), "then": vmlck()}
assert bool((first.fill_(5) == 5).all())
del first
_deepnvme.pin.empty_cache()
answer["empty"] = vmlck()
seven = attempt(7 * MIB)
answer["7"] = isinstance(seven, torch.Tensor)
del seven
_deepnvme.pin.empty_cache()
answer["16"] = attempt(16 * MIB)
answer["after 16"] = vmlck()
answer["4 again"] = isinstance(attempt(4 * MIB), torch.Tensor)
answer["in use"] = _deepnvme.pin.stats()["in_use"]
print(json.dumps(answer))
"""


def test_four_seven_sixteen_four() -> None:
    answer = child_answer(PRELUDE + SEQUENCE, wrapper=with_low_memlock(LIMIT))
    assert answer == {
        "start": 0,
        "held": 4 * MIB,
        "7 beside 4": refusal(7 * MIB, 4 * MIB),
        "then": 4 * MIB,
        "empty": 0,
        "7": True,
        "16": refusal(16 * MIB, 0),
        "after 16": 0,
        "4 again": True,
        "in use": 0,
    }


CACHED = """
first = attempt(5 * MIB)
del first
answer = {"cached": _deepnvme.pin.stats()["cached"]}
second = attempt(6 * MIB)
answer["second"] = isinstance(second, torch.Tensor)
answer["locked"] = vmlck()
print(json.dumps(answer))
"""


def test_the_pool_gives_way() -> None:
    """What is only cached is given up before a request is refused."""
    answer = child_answer(PRELUDE + CACHED, wrapper=with_low_memlock(LIMIT))
    assert answer == {"cached": 5 * MIB, "second": True, "locked": 6 * MIB}


MANY_SMALL = """
tensors = []
while isinstance(tensor := attempt(4096), torch.Tensor):
    tensors.append(tensor.fill_(len(tensors) % 251))
answer = {"count": len(tensors), "locked": vmlck(), "error": tensor}
answer["whole"] = all(bool((t == i % 251).all()) for i, t in enumerate(tensors))
del tensors[::2]
gc.collect()
again = [attempt(4096) for _ in range(answer["count"] // 2)]
answer["again"] = all(isinstance(t, torch.Tensor) for t in again)
tensors.clear()
again.clear()
_deepnvme.pin.empty_cache()
answer["empty"] = vmlck()
print(json.dumps(answer))
"""


def test_small_regions_use_all_of_the_limit() -> None:
    """Small regions come out of larger mappings, which shrink to what the limit leaves."""
    answer = child_answer(PRELUDE + MANY_SMALL, wrapper=with_low_memlock(LIMIT))
    assert answer == {
        "count": LIMIT // 4096,
        "locked": LIMIT,
        "error": refusal(4096, LIMIT),
        "whole": True,
        "again": True,
        "empty": 0,
    }


RAISED = """
held_bytes, large_bytes = map(int, sys.argv[1:])
held = attempt(held_bytes)
before = vmlck()
answer = {"error": attempt(large_bytes), "nothing left": vmlck() == before}
soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
large = attempt(large_bytes)
answer["locked"] = vmlck()
answer["pinned"] = pins.is_pinned(large)
large.fill_(5)
del large
_deepnvme.pin.empty_cache()
answer["back"] = vmlck() == before
print(json.dumps(answer))
"""


def test_the_same_request_after_the_limit_is_raised() -> None:
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is not installed")
    _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    hard = 64 * MIB if most == resource.RLIM_INFINITY else min(most, 64 * MIB)
    soft = hard // 8
    if soft < MIB:
        pytest.skip(f"a hard memlock limit of {hard} bytes leaves no room for this test")
    held, large = soft // 2, hard * 5 // 8
    wrapper = ["prlimit", f"--memlock={soft}:{hard}", *without_capabilities("ipc_lock")]
    answer = child_answer(PRELUDE + RAISED, held, large, wrapper=wrapper)
    assert answer == {
        "error": refusal(large, held, soft),
        "nothing left": True,
        "locked": held + large,
        "pinned": True,
        "back": True,
    }


IO = """
backend, folder = sys.argv[1:]
handle = aio.aio_handle(backend=backend, block_size=65536, intra_op_parallelism=2)
room = torch.zeros(3 * MIB + 1, dtype=torch.uint8)
path = f"{folder}/file"
data = pattern(3 * MIB)
fill(room[1:], data)
handle.sync_pwrite(room[1:], path, 3)
handle.async_pwrite(room[1:], f"{folder}/other")
counted = handle.wait()
room.zero_()
moved = handle.submit_pread(room[1:], path, 3).result()
same = raw(room[1:]) == data
whole = open(path, "rb").read() == bytes(3) + data and open(f"{folder}/other", "rb").read() == data
strided = torch.zeros(2, MIB, dtype=torch.uint8).t()
handle.sync_pread(strided, path, 3)
scattered = raw(strided) == data[: 2 * MIB]
print(json.dumps([counted, moved, same, whole, scattered, vmlck() <= MIB]))
"""


def test_io_needs_no_locked_memory(disk: Path, backend: str) -> None:
    """With room for a ring and for nothing else, staging blocks are ordinary memory."""
    answer = child_answer(PRELUDE + IO, backend, disk, wrapper=with_low_memlock(MIB))
    assert answer == [1, 3 * MIB, True, True, True, True]
    assert (disk / "file").read_bytes() == bytes(3) + pattern(3 * MIB)
