"""Read parts of a file under asyncio, while other tasks run.

python examples/with_asyncio.py
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import torch

import aio

PARTS = 8
ELEMENTS = 250_000


async def checksum(handle: aio.aio_handle, file: Path, part: int) -> float:
    """The sum of one part; the event loop goes on while its bytes are on the way."""
    buffer = torch.empty(ELEMENTS)
    await handle.submit_pread(buffer, file, part * buffer.nbytes)
    return float(buffer.sum())


async def tick(ticks: list[int]) -> None:
    while True:
        ticks.append(len(ticks))
        await asyncio.sleep(0)


async def main(directory: Path) -> None:
    file = directory / "parts.bin"
    ticks: list[int] = []
    with aio.aio_handle() as handle:
        await handle.submit_pwrite(torch.arange(PARTS).repeat_interleave(ELEMENTS).float(), file)
        ticking = asyncio.create_task(tick(ticks))
        sums = await asyncio.gather(*(checksum(handle, file, part) for part in range(PARTS)))
        ticking.cancel()
    assert sums == [float(part * ELEMENTS) for part in range(PARTS)]
    print(f"{PARTS} parts read; another task ran {len(ticks)} times meanwhile")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        asyncio.run(main(Path(scratch)))
