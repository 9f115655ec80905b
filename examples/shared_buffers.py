"""Two handles, one page-locked buffer: there is one registry of such memory in a process.

One handle is for a slow drive with many requests in flight, the other for a fast one. What either
of them has pinned, both use without a copy.

    python examples/shared_buffers.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

import aio


def main(slow: Path, fast: Path) -> None:
    with (
        aio.aio_handle(block_size=1 << 20, queue_depth=256) as many,
        aio.aio_handle(block_size=8 << 20, queue_depth=8) as few,
    ):
        before = aio.pinned_stats()["in_use"]
        buffer = many.new_cpu_locked_tensor(4_000_000, torch.empty(0, dtype=torch.float32))
        assert few.is_pinned(buffer)
        assert few.is_pinned(buffer[1000:2000])  # so is every part of it

        few.sync_pwrite(buffer.normal_(), fast / "state.bin")
        expected = buffer.clone()
        few.sync_pread(buffer.zero_(), fast / "state.bin")
        many.sync_pwrite(buffer, slow / "state.bin")  # from one drive to the other
        many.sync_pread(buffer.zero_(), slow / "state.bin")
        assert torch.equal(buffer, expected)

        print(f"{aio.pinned_stats()['in_use'] - before} bytes locked for both handles")
        print("ways of the bytes read:", few.stats()["bytes"]["read"])
        assert few.free_cpu_locked_tensor(buffer)  # by either


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        try:
            main(Path(scratch), Path(scratch))
        except aio.PinError as error:
            sys.exit(f"cannot lock memory here: {error}")
