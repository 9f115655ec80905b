"""A queue that takes no more is emptied, not asked again for ever (A-10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.buffers import pattern, raw, tensor_of
from support.child import SUBMIT_CALLS, child_answer, injections, with_strace
from support.counters import status_kb
from support.files import contents

BLOCK = 4096
COUNT = 1000


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_thousand_blocks_through_a_depth_of_eight(
    directory: Path, backend: str, make_handle: Any, parallelism: int
) -> None:
    handle = make_handle(backend, block_size=BLOCK, queue_depth=8, intra_op_parallelism=parallelism)
    data = pattern(COUNT * BLOCK)
    path = directory / "file"
    source = tensor_of(data)
    for n in range(COUNT):
        assert handle.async_pwrite(source[n * BLOCK : (n + 1) * BLOCK], str(path), n * BLOCK) == 0
    assert handle.wait() == COUNT
    assert contents(path) == data
    back = torch.zeros(len(data), dtype=torch.uint8)
    for n in reversed(range(COUNT)):
        handle.async_pread(back[n * BLOCK : (n + 1) * BLOCK], str(path), n * BLOCK)
    assert handle.wait() == COUNT
    assert raw(back) == data


def test_one_request_of_a_thousand_blocks(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend, block_size=BLOCK, queue_depth=8)
    data = pattern(COUNT * BLOCK + 1)
    path = directory / "file"
    assert handle.sync_pwrite(tensor_of(data), str(path)) == 1
    assert contents(path) == data
    back = torch.zeros(len(data), dtype=torch.uint8)
    assert handle.sync_pread(back, str(path)) == 1
    assert raw(back) == data


def test_waiting_requests_cost_little_memory(
    directory: Path, backend: str, make_handle: Any
) -> None:
    """Requests that wait hold a description of the transfer, not a staging copy of it each."""
    handle = make_handle(backend, queue_depth=2)
    path = directory / "file"
    path.write_bytes(pattern(BLOCK + 1))
    tensor = torch.zeros(1 << 20, dtype=torch.uint8)
    handle.sync_pwrite(tensor[1:], str(path))
    before = status_kb("VmRSS")
    for _ in range(2000):
        handle.async_pread(tensor[1 : 1 + BLOCK], str(path))
    waiting = status_kb("VmRSS") - before
    assert handle.wait() == 2000
    assert waiting < 8 * 1024


ROUND_TRIP = """
import json, sys
import torch, aio
from support.buffers import pattern, raw, tensor_of
backend, name = sys.argv[1:3]
data = pattern(200 * 4096)
source, back = tensor_of(data), torch.zeros(len(data), dtype=torch.uint8)
with aio.aio_handle(block_size=4096, queue_depth=8, backend=backend) as handle:
    for n in range(200):
        handle.async_pwrite(source[n * 4096:(n + 1) * 4096], name, n * 4096)
    done = handle.wait()
    written = open(name, "rb").read() == data
    for n in range(200):
        handle.async_pread(back[n * 4096:(n + 1) * 4096], name, n * 4096)
    done += handle.wait()
print(json.dumps([done, written, raw(back) == data]))
"""


@pytest.mark.parametrize("when", ["2..51", "2+2"])
def test_bursts_of_eagain(disk: Path, tmp_path: Path, backend: str, when: str) -> None:
    """From the second call of each thread on: the first is the engine's own, while it is made."""
    log, path = tmp_path / "log", disk / "file"
    if backend == "posix" and when == "2..51":
        pytest.skip("a plain read that says EAGAIN fifty times in a row has the right to fail")
    wrapper = with_strace(
        log,
        f"trace={SUBMIT_CALLS[backend]}",
        f"inject={SUBMIT_CALLS[backend]}:error=EAGAIN:when={when}",
        path=[path] if backend == "posix" else [],
    )
    assert child_answer(ROUND_TRIP, backend, path, wrapper=wrapper) == [400, True, True]
    assert injections(log) > 0
