"""Ten thousand operations through a queue of depth 2, and through few descriptors (C-11)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.buffers import pattern, raw, tensor_of
from support.child import child_answer

COUNT = 10_000
NBYTES = 512


@pytest.mark.parametrize("depth", [1, 2])
def test_ten_thousand_before_the_first_wait(
    tmpfs: Path, backend: str, make_handle: Any, depth: int
) -> None:
    handle = make_handle(backend, queue_depth=depth)
    data = pattern(COUNT * NBYTES)
    source = tensor_of(data)
    for index in range(COUNT):
        piece = slice(index * NBYTES, (index + 1) * NBYTES)
        assert handle.async_pwrite(source[piece], tmpfs / "file", index * NBYTES) == 0
    assert handle.wait() == COUNT
    assert (tmpfs / "file").read_bytes() == data


def test_two_thousand_direct_reads(disk: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend, queue_depth=2, block_size=4096)
    data = pattern(2000 * 4096)
    (disk / "file").write_bytes(data)
    target = torch.zeros(len(data), dtype=torch.uint8)
    for index in reversed(range(2000)):
        piece = slice(index * 4096, (index + 1) * 4096)
        handle.async_pread(target[piece], disk / "file", index * 4096)
    assert handle.wait() == 2000
    assert raw(target) == data


FEW_DESCRIPTORS = """
import json, os, resource, sys
import torch, aio
from support.buffers import pattern
backend, folder, count, limit = sys.argv[1:3] + list(map(int, sys.argv[3:]))
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
handle = aio.aio_handle(backend=backend, queue_depth=4)
most = 0
for index in range(count):
    handle.async_pwrite(pattern(5000, index), f"{folder}/{index}")
    most = max(most, len(os.listdir("/proc/self/fd")))
counted = handle.wait()
again = [(bytearray(5000), f"{folder}/{index}") for index in range(count)]
read = handle.pread_many(again)
equal = all(buffer == pattern(5000, index) for index, (buffer, _) in enumerate(again))
with open(f"{folder}/0"):
    pass
print(json.dumps({"counted": counted, "read": read, "equal": equal, "within": most < limit}))
"""


def test_more_files_than_descriptors(disk: Path, backend: str) -> None:
    """A request that would need one descriptor too many waits for others to complete."""
    answer = child_answer(FEW_DESCRIPTORS, backend, disk, 1000, 128)
    assert answer == {"counted": 1000, "read": 1000, "equal": True, "within": True}
    for index in range(1000):
        assert (disk / f"{index}").read_bytes() == pattern(5000, index)
