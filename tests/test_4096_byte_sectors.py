"""Drives with 4096-byte sectors take every size, offset and split (B-06)."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.buffers import locked, pattern, raw, shifted, tensor_of
from support.files import contents, drop_cache
from support.mounts import ext4_image


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    point = tmp_path_factory.mktemp("drive") / "image"
    with ext4_image(point, 64 << 20, sector_size=4096) as path:
        yield path


@pytest.fixture
def sectors(drive: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=drive))


SIZES = [512, 1536, 4608, 8192, 3 * 4608, 100_000]
OFFSETS = [0, 512, 4096, 5000]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_round_trip(sectors: Path, backend: str, make_handle: Any, parallelism: int) -> None:
    handle = make_handle(backend, block_size=4608, intra_op_parallelism=parallelism)
    for nbytes, offset in itertools.product(SIZES, OFFSETS):
        data = pattern(nbytes)
        path = sectors / f"{nbytes} at {offset}"
        assert handle.sync_pwrite(tensor_of(data), str(path), offset) == 1
        assert contents(path) == bytes(offset) + data
        drop_cache(path)
        for back in (
            torch.zeros(nbytes, dtype=torch.uint8),
            shifted(nbytes, 512),
            locked(handle, nbytes),
            locked(handle, nbytes + 512)[512:],
        ):
            back.zero_()
            assert handle.sync_pread(back, str(path), offset) == 1
            assert raw(back) == data


def test_what_fits_goes_direct(sectors: Path, backend: str, make_handle: Any) -> None:
    """The small alignment that the drive refuses is not an excuse to give O_DIRECT up."""
    handle = make_handle(backend)
    data = pattern(1 << 20)
    tensor = locked(handle, 1 << 20)
    tensor.copy_(tensor_of(data))
    path = sectors / "file"
    assert handle.sync_pwrite(tensor, str(path)) == 1
    assert contents(path) == data
    drop_cache(path)
    tensor.zero_()
    assert handle.sync_pread(tensor, str(path)) == 1
    assert raw(tensor) == data
    stats = handle.stats()
    assert stats["direct_refused"] == 0
    for way in ("read", "write"):
        moved = stats["bytes"][way]
        assert moved["direct"] + moved["fixed"] == 1 << 20
        assert moved["buffered"] == moved["staged"] == 0
