"""Keep thousands of small tensors in one file, and read some of them by one call.

python examples/many_tensors.py
"""

from __future__ import annotations

import tempfile
from itertools import accumulate
from pathlib import Path

import torch

import aio


def main(directory: Path) -> None:
    file = directory / "embeddings.bin"
    rows = [torch.randn(64 + i % 7) for i in range(5000)]
    # A file knows no tensors: where each of them starts is the program's to keep.
    starts = [0, *accumulate(row.nbytes for row in rows)]
    with aio.aio_handle() as handle:
        handle.pwrite_many((row, file, at) for row, at in zip(rows, starts, strict=False))

        wanted = torch.randperm(len(rows))[:1000].tolist()
        found = {i: torch.empty_like(rows[i]) for i in wanted}
        handle.pread_many((row, file, starts[i]) for i, row in found.items())
        assert all(torch.equal(row, rows[i]) for i, row in found.items())

        moved = sum(row.nbytes for row in found.values())
        print(f"{len(found)} of {len(rows)} tensors, {moved} bytes, by one call")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        main(Path(scratch))
