"""A view is its own elements: not the storage's first ones, and no neighbour is touched (B-14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from support.buffers import locked, pattern, raw, tensor_of
from support.files import contents


@pytest.mark.parametrize("pinned", [False, True], ids=["plain", "locked"])
def test_narrow(directory: Path, backend: str, make_handle: Any, pinned: bool) -> None:
    handle = make_handle(backend)
    base = tensor_of(pattern(4 * 2000), torch.int32)
    if pinned:
        copy = locked(handle, 4 * 2000).view(torch.int32)
        base = copy.copy_(base)
    before = base.clone()
    view = base.narrow(0, 7, 1000)
    assert view.storage_offset() == base.storage_offset() + 7
    path = directory / "file"
    assert handle.sync_pwrite(view, str(path)) == 1
    assert np.fromfile(path, dtype=np.int32).tolist() == before[7:1007].tolist()
    new = pattern(4000, seed=1)
    path.write_bytes(new)
    assert handle.sync_pread(view, str(path)) == 1
    assert torch.equal(base[:7], before[:7])
    assert torch.equal(base[1007:], before[1007:])
    assert raw(base[7:1007]) == new


DTYPES = [torch.uint8, torch.int16, torch.float32, torch.complex128]


@st.composite
def views(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """A base of unique bytes and some view of it: sliced, stepped, permuted, with any strides in
    memory.
    """
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(1, 17), min_size=1, max_size=4))
    base = tensor_of(pattern(dtype.itemsize * int(np.prod(shape))), dtype).reshape(shape)
    view = base
    for dim, size in enumerate(shape):
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start, size))
        step = draw(st.integers(1, 3))
        view = view[(slice(None),) * dim + (slice(start, stop, step),)]
    view = view.permute(draw(st.permutations(range(view.dim()))))
    return base, view


@given(drawn=views(), seed=st.integers(0, 99))
def test_strided_views(
    directory: Path, handle: Any, drawn: tuple[torch.Tensor, torch.Tensor], seed: int
) -> None:
    base, view = drawn
    path = directory / "file"
    path.unlink(missing_ok=True)
    model = base.clone()
    model_view = model.as_strided(view.size(), view.stride(), view.storage_offset())
    assert handle.sync_pwrite(view, str(path)) == 1
    assert contents(path) == raw(view)
    nbytes = view.numel() * view.element_size()
    assume(nbytes > 0)
    new = pattern(nbytes, seed)
    path.write_bytes(new)
    model_view.copy_(tensor_of(new, view.dtype).reshape(view.shape))
    assert handle.sync_pread(view, str(path)) == 1
    assert raw(base) == raw(model)


@pytest.mark.parametrize("nbytes", [3 << 20, (3 << 20) + 64])
def test_large_strided_tensor(directory: Path, backend: str, make_handle: Any, nbytes: int) -> None:
    """More elements than one block holds."""
    handle = make_handle(backend, block_size=65536, intra_op_parallelism=2)
    base = tensor_of(pattern(nbytes), torch.float64)
    view = base.reshape(8, -1)[1:7].t()
    path = directory / "file"
    assert handle.sync_pwrite(view, str(path), 100) == 1
    assert contents(path)[100:] == view.contiguous().numpy().tobytes()
    before = base.clone().reshape(8, -1)
    new = pattern(view.numel() * 8, seed=3)
    path.write_bytes(bytes(100) + new)
    assert handle.sync_pread(view, str(path), 100) == 1
    assert raw(view) == new
    assert raw(base.reshape(8, -1)[0]) == raw(before[0])
    assert raw(base.reshape(8, -1)[7]) == raw(before[7])


OVERLAPPING = [
    torch.zeros(3).expand(4, 3),
    torch.zeros(1).expand(5),
    torch.arange(10.0).as_strided((4, 4), (1, 1)),
    torch.arange(10.0).as_strided((3, 3), (2, 1)),
]


@pytest.mark.parametrize("tensor", OVERLAPPING, ids=["rows", "scalar", "window", "partly"])
def test_destinations_that_overlap_themselves(
    directory: Path, backend: str, make_handle: Any, tensor: torch.Tensor
) -> None:
    """Written they are gathered; read into, two elements would fight for one place, so that is
    refused.
    """
    handle = make_handle(backend)
    path = directory / "file"
    assert handle.sync_pwrite(tensor, str(path)) == 1
    assert contents(path) == raw(tensor)
    before = raw(tensor)
    path.write_bytes(pattern(len(before)))
    with pytest.raises(ValueError, match="overlap"):
        handle.sync_pread(tensor, str(path))
    assert raw(tensor) == before
