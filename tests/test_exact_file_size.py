"""A file ends with the last written byte and holds them all: no padding (A-04, B-10)."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.buffers import fill, locked, pattern, tensor_of
from support.files import FileModel, contents

BLOCK = 64 * 1024
SIZES = [
    1,
    511,
    512,
    513,
    4095,
    4096,
    4097,
    BLOCK - 1,
    BLOCK,
    BLOCK + 1,
    3 * BLOCK + 17,
    28_824_000,
]


@pytest.mark.parametrize("pinned", [False, True], ids=["plain", "locked"])
def test_sizes(directory: Path, backend: str, make_handle: Any, pinned: bool) -> None:
    handle = make_handle(backend, block_size=BLOCK)
    for nbytes in SIZES:
        data = pattern(nbytes)
        tensor = locked(handle, nbytes) if pinned else tensor_of(bytes(nbytes))
        fill(tensor, data)
        path = directory / str(nbytes)
        assert handle.sync_pwrite(tensor, str(path)) == 1
        assert os.path.getsize(path) == nbytes
        assert np.fromfile(path, dtype=np.uint8).tobytes() == data
        tensor.zero_()
        assert handle.sync_pread(tensor, str(path)) == 1
        assert tensor.numpy().tobytes() == data


@given(
    before=st.integers(0, 5 * BLOCK),
    nbytes=st.integers(1, 3 * BLOCK),
    offset=st.one_of(st.integers(0, 5 * BLOCK), st.sampled_from([512, 4096, BLOCK])),
)
def test_writes_at_offsets_neither_pad_nor_truncate(
    directory: Path, handle: Any, before: int, nbytes: int, offset: int
) -> None:
    path = directory / "file"
    path.write_bytes(pattern(before, seed=1))
    model = FileModel(pattern(before, seed=1))
    data = pattern(nbytes, seed=2)
    assert handle.sync_pwrite(tensor_of(data), str(path), offset) == 1
    model.write(offset, data)
    assert path.stat().st_size == max(before, offset + nbytes)
    assert contents(path) == model.content()


@pytest.fixture
def pair(backend: str, make_handle: Any) -> Any:
    """A handle with two workers."""
    return make_handle(backend, block_size=BLOCK, intra_op_parallelism=2)


@given(cuts=st.lists(st.integers(1, 4 * BLOCK - 1), min_size=1, max_size=12, unique=True))
def test_neighbours_written_at_once_keep_each_others_bytes(
    directory: Path, pair: Any, cuts: list[int]
) -> None:
    """Pieces that meet inside a block are in flight together: none may write the block back."""
    data = pattern(4 * BLOCK)
    edges = [0, *sorted(cuts), len(data)]
    path = directory / "file"
    path.unlink(missing_ok=True)
    for start, end in itertools.pairwise(edges):
        pair.async_pwrite(tensor_of(data[start:end]), str(path), start)
    assert pair.wait() == len(edges) - 1
    assert contents(path) == data
