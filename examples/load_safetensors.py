"""Read the tensors of a safetensors file into page-locked memory, past the page cache.

python examples/load_safetensors.py [FILE]      (pip install safetensors)
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path

import torch

import aio

try:
    from safetensors import safe_open
    from safetensors.torch import save_file
except ImportError:
    sys.exit("this example needs the package that parses the header: pip install safetensors")

DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn},
}


def layout(file: Path) -> Iterator[tuple[str, torch.dtype, list[int], int]]:
    """Name, dtype, shape and offset of each tensor: they lie one after the other, to the end."""
    with safe_open(file, framework="pt") as header:
        slices = {name: header.get_slice(name) for name in header.offset_keys()}
    shapes = {name: (DTYPES[s.get_dtype()], s.get_shape()) for name, s in slices.items()}
    offset = file.stat().st_size - sum(t.itemsize * prod(shape) for t, shape in shapes.values())
    for name, (dtype, shape) in shapes.items():
        yield name, dtype, shape, offset
        offset += dtype.itemsize * prod(shape)


def load(file: Path, handle: aio.aio_handle) -> dict[str, torch.Tensor]:
    tensors, offsets = {}, []
    for name, dtype, shape, offset in layout(file):
        flat = handle.new_cpu_locked_tensor(prod(shape), torch.empty(0, dtype=dtype))
        tensors[name] = flat.view(shape)
        offsets.append(offset)
    handle.pread_many((t, file, at) for t, at in zip(tensors.values(), offsets, strict=True))
    return tensors


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch, aio.aio_handle() as handle:
        file = Path(sys.argv[1] if sys.argv[1:] else f"{scratch}/made.safetensors")
        if not sys.argv[1:]:
            save_file({"weight": torch.randn(500, 300), "step": torch.tensor(7)}, file)
        found = load(file, handle)
        nbytes = sum(tensor.nbytes for tensor in found.values())
        print(f"{len(found)} tensors, {nbytes} bytes, page-locked: {', '.join(found)}"[:200])
