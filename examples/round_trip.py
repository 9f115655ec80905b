"""Write a tensor to a file and read it back, three ways: at once, later, and as a future.

python examples/round_trip.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import aio


def main(directory: Path) -> None:
    file = directory / "tensor.bin"
    tensor = torch.randn(1000, 1000)
    back = torch.empty_like(tensor)
    with aio.aio_handle() as handle:
        handle.sync_pwrite(tensor, file)
        handle.sync_pread(back, file)
        assert torch.equal(back, tensor)

        # Started, and carried out while the program does something else.
        handle.async_pread(back.zero_(), file)
        something_else = tensor.square().mean()
        assert handle.wait() == 1
        assert torch.equal(back, tensor)

        future = handle.submit_pread(back.zero_(), file)
        assert future.result(timeout=60) == tensor.nbytes
        assert torch.equal(back, tensor)
        print(f"{tensor.nbytes} bytes came back through {handle.backend}")
        print(f"mean square, computed while they moved: {something_else:.3f}")


if __name__ == "__main__":
    # Not /tmp, which is memory on many systems.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        main(Path(scratch))
